"""pocket-photo: a CLIP whose image tower is an ImageNet classifier and whose words are trained to meet it."""
