#!/bin/bash
# CodeLlama 7B on chess games, four GPUs of one node, FSDP.    sbatch jobs/chess.sh [section.key=value ...]
#
#   sbatch --gpus-per-node=8 jobs/chess.sh      the same optimisation on eight: total_batch_size
#   sbatch jobs/chess.sh parallel.strategy=ddp train.act_ckpt=full
#SBATCH --job-name=blipft-chess
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-gpu=8
#SBATCH --mem-per-gpu=64G
#SBATCH --time=12:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@120
##SBATCH --partition=gpu
##SBATCH --account=project

set -euo pipefail
script=$(squeue --noheader --job="${SLURM_JOB_ID:-0}" --format=%o 2> /dev/null || true)  # Slurm runs a copy of this file
source "$(dirname "$(realpath "${script%%.sh*}" 2> /dev/null || realpath "$0")")/common.sh"  # modules, ranks, time limit, going back into the queue

train chess @chess "$@"
