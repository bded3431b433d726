"""From the `data` block of a spec to tokens; training and preview share it, so they see the same rows.

    sources        the rows of a spec
    readers        files and folders → rows
    formats        the shape of a row
    chat_template  conversations → text and the assistant's spans
    tokenization   rows → token ids, trained or masked
    token_cache    tokens of an earlier launch

Imports tokenizers but no model and no trainer, so that a preview is fast.
"""
