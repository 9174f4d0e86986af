"""Features of whole datasets under several backbones, computed ahead of the runs that use them, by many workers."""
