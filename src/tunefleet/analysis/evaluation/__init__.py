"""How sure a measurement is, and whether one model is better than another on the same items. Standard library only.

Pure: knows neither models nor how a metric came about. Programs measure with it, people compare with it, and a campaign
decides by it what is promoted.
"""
