"""The practitioner's object: fit on a few images, trust, use, save."""
