#!/usr/bin/env bash
# Rollout and training on one GPU with a random 0.5B-shaped model: JSON lines on stdout, under 8 minutes.
#   benchmarks/gpu.sh [PYTHON]        the interpreter's environment needs the project, torch for CUDA; vllm and trl if at hand
set -euo pipefail
cd "$(dirname "$0")/.."
python="${1:-python}"
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 PYTHONPATH=".${PYTHONPATH:+:$PYTHONPATH}"
status=0
timeout 230 "$python" benchmarks/gpu_rollout.py || status=$?
timeout 230 "$python" benchmarks/gpu_train.py || status=$?
exit "$status"
