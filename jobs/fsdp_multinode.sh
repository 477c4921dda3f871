#!/bin/bash
# Eight GPUs of two nodes, FSDP.    sbatch jobs/fsdp_multinode.sh [section.key=value ...]
#SBATCH --job-name=blipft-fsdp-multinode
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --mem=256G
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.log
#SBATCH --signal=TERM@60
##SBATCH --partition=gpu
##SBATCH --account=project

# One rank for each GPU; every rank sees the GPUs of its node and takes its own, so ask for --gpus-per-node and not
# for --gpus-per-task. 60 s before the time limit the ranks get SIGTERM. The trace is readable whenever a run is ended.

set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}"  # submit from the repository, where ./blipft is

# What ./blipft was built with; names differ from cluster to cluster.
# module purge
# module load gcc cuda nccl openmpi hdf5

# Let NCCL say how it connects the nodes (look for NET/IB; NET/Socket means that it found no fast network), and name
# the network when it takes the wrong one.
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
# export NCCL_SOCKET_IFNAME=ib0

output=runs/fsdp_multinode-${SLURM_JOB_ID:-$(date +%Y%m%d-%H%M%S)}
mkdir -p "$output"

# parallel.shard_ranks=node cuts the parameters over the GPUs of a node only, and sums gradients over the nodes: much less
# goes through the network, and a rank holds twice (here: 2 nodes) the parameters, gradients and optimizer state. Where
# the plan says that it fits, it is mostly faster; add it to this script's arguments.
# The plan needs to know a node's ranks then, hence --node-ranks.

# Says whether the job fits the GPUs before it takes them.
./blipft --plan --ranks 8 --node-ranks 4 inputs/fsdp.yaml parallel.devices=8 "$@"

exec srun --mpi=pmix ./blipft inputs/fsdp.yaml parallel.devices=8 output.path="$output" "$@"
# Without PMIx in Slurm:
# exec mpirun -np 8 --map-by ppr:4:node:PE=8 ./blipft inputs/fsdp.yaml parallel.devices=8 output.path="$output" "$@"
