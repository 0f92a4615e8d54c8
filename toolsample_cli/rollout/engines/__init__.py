"""Engines that generate, one file each; one is imported only when it is asked for."""
