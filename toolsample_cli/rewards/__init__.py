"""The parts of a reward: how values compare, how calls are paired, and the table of published rewards."""
