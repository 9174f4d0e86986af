"""What is wrong with a folder of labelled images: labels, copies, pictures and classes."""
