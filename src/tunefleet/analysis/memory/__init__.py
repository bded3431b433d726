"""How much memory a training will take, told before anything is allocated.

Pure: the server says it of a document, a training of itself before it begins; the latter also measures, and learns.
"""
