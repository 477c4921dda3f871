#!/bin/bash
# A sweep: every combination of the values in a file, as the tasks of a Slurm array.    jobs/sweep.sh SWEEP.yaml [sbatch option ...]
#
#   run: inputs/photos.yaml            jobs/sweep.sh rates.yaml --time=04:00:00
#   train.lr: [1e-5, 3e-5, 1e-4]
#   train.batch_size: [16, 32]
#
# Each run has a folder under sweeps/NAME (or output: FOLDER in the file). table.txt in there has a row for each run, and is
# written again when a run ends. Started again, the sweep resumes the runs that have not ended, from their newest
# checkpoint. The file's form: tools/sweep.py --help. Without Slurm the runs follow each other on this machine, on RANKS
# ranks (default 1).
#SBATCH --job-name=blipft-sweep
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-gpu=8
#SBATCH --mem-per-gpu=64G
#SBATCH --time=01:00:00
#SBATCH --output=%x-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@120
##SBATCH --partition=gpu
##SBATCH --account=project

set -euo pipefail
script=$(squeue --noheader --job="${SLURM_JOB_ID:-0}" --format=%o 2> /dev/null || true)  # Slurm runs a copy of this file
source "$(dirname "$(realpath "${script%%.sh*}" 2> /dev/null || realpath "$0")")/common.sh"  # modules, ranks, time limit, going back into the queue
sweep=$jobs/../tools/sweep.py

file=${1:?a sweep file is missing: jobs/sweep.sh SWEEP.yaml [sbatch option ...]}
shift
status=0
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then        # a task; the file is the sweep's folder
  arguments=$("$sweep" arguments "$file" "$SLURM_ARRAY_TASK_ID")
  mapfile -t run <<< "$arguments"
  train sweep "${run[@]}" || status=$?
  "$sweep" table "$file"
  exit "$status"
fi

prepared=$("$sweep" prepare "$file")
{ read -r output && read -r numbers || true; } <<< "$prepared"
if [ -z "$numbers" ]; then
  echo "all runs of $output have ended"
  "$sweep" table "$output"
elif command -v sbatch > /dev/null; then
  sbatch --array="$numbers" "$@" "$jobs/sweep.sh" "$output"
  echo "the table will be $output/table.txt"
else
  for number in $(tr , '\n' <<< "$numbers" | while IFS=- read -r first last; do seq "$first" "${last:-$first}"; done); do
    arguments=$("$sweep" arguments "$output" "$number")
    mapfile -t run <<< "$arguments"
    # shellcheck disable=SC2086
    ${RANKS:+mpirun -np $RANKS} "$program" "${run[@]}" checkpoint.resume=auto || status=$?
    "$sweep" table "$output"
    [ "$status" -ne 75 ] || exit 75                # stopped
  done
  exit "$status"
fi
