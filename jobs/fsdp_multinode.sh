#!/bin/bash
# Eight GPUs of two nodes, FSDP.    sbatch jobs/fsdp_multinode.sh [section.key=value ...]
#SBATCH --job-name=blipft-fsdp-multinode
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-gpu=8
#SBATCH --mem-per-gpu=64G
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@120
##SBATCH --partition=gpu
##SBATCH --account=project

set -euo pipefail
script=$(squeue --noheader --job="${SLURM_JOB_ID:-0}" --format=%o 2> /dev/null || true)  # Slurm runs a copy of this file
source "$(dirname "$(realpath "${script%%.sh*}" 2> /dev/null || realpath "$0")")/common.sh"  # modules, ranks, time limit, going back into the queue

# Let NCCL say how it connects the nodes (look for NET/IB; NET/Socket means that it found no fast network), and name
# the network when it takes the wrong one.
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
# export NCCL_SOCKET_IFNAME=ib0

# parallel.shard_ranks=node cuts the parameters over the GPUs of a node only, and sums gradients over the nodes: much
# less goes through the network, and a rank holds twice (here: 2 nodes) the parameters, gradients and optimizer state.
# If the plan says that it fits, it is mostly faster; add it to this script's arguments.
train fsdp_multinode @fsdp "$@"
