"""Data for the inputs of a program: files, images, generated and random data."""
