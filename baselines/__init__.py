"""What GMA is compared with: one file a mixer, each a ``gma.SequenceMixer``."""
