"""The parts of opbridge.compare(): what both sides computed, which values belong together, how far apart they are."""
