#!/bin/sh
# Starts CUDA MPS, and then what it is told to.
#
# TensorRT-LLM's worker and the codec are two processes on one GPU; without MPS their kernels take turns.
# The daemon runs here, beside them, because a GPU or a slice of one is lent to a single container, and
# because it must be of the same user. MPS=off leaves it out: for a GPU whose host runs one already
# (mount its pipe at CUDA_MPS_PIPE_DIRECTORY), or to compare.
set -eu

if [ "${MPS:-on}" = on ]; then
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    if ! nvidia-cuda-mps-control -d; then
        echo "CUDA MPS does not start (see $CUDA_MPS_LOG_DIRECTORY); set MPS=off to run without it" >&2
        exit 1
    fi
fi
exec "$@"
