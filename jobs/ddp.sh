#!/bin/bash
# Four GPUs of one node, DDP: Experiment 2 of the tutorial.    sbatch jobs/ddp.sh [section.key=value ...]
#SBATCH --job-name=blipft-ddp
#SBATCH --nodes=1
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
cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}"  # submit from the repository, where ./blipft is
source jobs/common.sh                         # modules, ranks, time limit, going back into the queue

train ddp inputs/ddp.yaml "$@"
