"""Evaluation of runs from their stored logits: every metric under every calibrator, without the model."""
