"""From the `data` block of a spec to tokens; `train` and `preview` see the same rows because both come here.

    sources        which rows a spec means
    readers        files and folders → rows
    formats        what a row is
    chat_template  conversations → text and the assistant's spans
    tokenization   rows → ids, and which of them count in the loss
    token_cache    what an earlier launch has tokenised

Imports tokenizers but no model and no trainer: a preview must not wait for them.
"""
