"""What becomes of a model outside of the fleet: what a task leaves, the card that goes with it, and where it is put.

products    what a task leaves that can be used elsewhere, and the merge that makes more of an adapter
card        the model card, made from lineage and results
hub         what is read from the Hugging Face hub
targets     a repository of the hub, a place in a bucket, a folder
"""
