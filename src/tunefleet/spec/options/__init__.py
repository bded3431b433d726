"""Blocks of keys that several task types share: model, data, training, output, resources."""
