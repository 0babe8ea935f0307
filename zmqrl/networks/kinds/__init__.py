"""Layer kinds, one file each; none of them imports torch."""
