"""Image features: how they are computed, the store that keeps them on disk, and the banks that tuners train on."""

EXTRACTION = 1  # raise it when a change alters the features: those that are stored are then not used any more
