"""From the `data` block of a spec to tokens; `train` and `preview` see the same rows because both come here.

    sources    which rows a spec means          readers    files and folders → rows
    shapes     what a row is                    chat       conversations → text and the assistant's spans
    tokens     rows → ids, and which of them count in the loss
    kept       what an earlier launch has tokenised

Imports tokenizers but no model and no trainer: a preview must not wait for them.
"""
