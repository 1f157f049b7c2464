"""Modules that scripts of the corpus import."""
