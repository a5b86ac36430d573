"""Models in the layout that `save_pretrained` writes: weights in safetensors, beside JSON and text files."""
