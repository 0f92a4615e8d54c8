"""The GRPO step: advantage, batch and loss are pure; data, checkpoint and trainer carry them.

Shapes in names: R rollouts, G groups, N scored tokens, T slots of a packed micro-batch, V vocabulary, H hidden.
"""
