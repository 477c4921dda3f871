#!/bin/bash
# Any run file, on the GPUs of one node, or of several (--nodes=2).    sbatch jobs/run.sh RUN-FILE [section.key=value ...]
#
#   sbatch jobs/run.sh inputs/llama/7b-fsdp.yaml model.path=/models/open_llama_7b
#   sbatch --nodes=2 jobs/run.sh inputs/llama/7b-fsdp.yaml checkpoint.every_minutes=30
#   sbatch --gpus-per-node=1 --time=04:00:00 jobs/run.sh inputs/llama/7b-lora.yaml model.quantize=nf4
#
# Without checkpoint.every_minutes a node that dies takes the whole run; being preempted or out of time does not need it.
# Arrays and chains of jobs: jobs/single.sh and fsdp.sh.
#SBATCH --job-name=blipft
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

file=${1:?a run file is missing: sbatch jobs/run.sh RUN-FILE [section.key=value ...]}
shift
train "$(basename "${file#@}" .yaml)" "$file" "$@"
