"""Publishing models outside of the fleet: task outputs, model cards, and targets.

products    outputs of a task that can be used elsewhere, and merges that produce more forms
card        the model card, generated from lineage and results
hub         reads from the Hugging Face Hub
targets     a Hub repository, a folder in a bucket, a local folder
"""
