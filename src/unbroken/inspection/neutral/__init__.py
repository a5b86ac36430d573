"""What of a checkpoint other programs can use: found in its documents, said in the words of `format/neutral.py`."""
