#!/bin/bash
# One GPU: Experiment 1 of the tutorial.    sbatch jobs/single.sh [section.key=value ...]
#
# Several runs, as an array, each task with its own rate:
#   sbatch --array=0-2 jobs/single.sh, with this line before `train`:
#     rates=(1e-5 2e-5 4e-5); set -- train.lr="${rates[SLURM_ARRAY_TASK_ID]}" "$@"
#SBATCH --job-name=blipft-single
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
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

train single @single "$@"
