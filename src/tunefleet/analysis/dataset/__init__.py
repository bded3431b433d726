"""What the rows of a dataset are: reads lines, recognises shapes, looks a file through.

Pure, and light: the server says with it what somebody has uploaded, and jobs read rows with it. Knows no tokens, no
models, and not where a file comes from.
"""
