"""Commands of the command line that have many options, a file each; libraries are imported when one runs."""
