"""Dataset rows: reading lines, recognising shapes, previewing a file.

Lightweight and without side effects: the server previews uploads with it, and jobs read rows with it. Independent of
tokenizers, models and the origin of a file.
"""
