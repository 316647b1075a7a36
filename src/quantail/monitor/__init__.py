"""What is wrong, and what to do about it: of the installation now, of a run later."""
