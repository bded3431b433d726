"""Complete checkpoints: manifest, resume and retention."""
