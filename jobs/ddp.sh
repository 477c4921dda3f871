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
script=$(squeue --noheader --job="${SLURM_JOB_ID:-0}" --format=%o 2> /dev/null || true)  # Slurm runs a copy of this file
source "$(dirname "$(realpath "${script%%.sh*}" 2> /dev/null || realpath "$0")")/common.sh"  # modules, ranks, time limit, going back into the queue

train ddp @ddp "$@"
