# Shared code of the job scripts. They source it and call `train NAME RUN-FILE [section.key=value ...]`.

# The site's settings are in a file of their own, so that these scripts stay unchanged. It contains shell commands:
#   module load gcc cuda nccl openmpi hdf5
#   export NCCL_SOCKET_IFNAME=ib0
#   mpi=pmi2                                    (srun --mpi; default pmix)
# BLIPFT_SITE names the file. The default is /etc/blipft/site.sh, if that exists.
jobs=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
mpi=pmix
if [ -n "${BLIPFT_SITE:-}" ] && [ ! -r "$BLIPFT_SITE" ]; then
  echo "BLIPFT_SITE: found \"$BLIPFT_SITE\", expected a file that can be read, with the site's shell commands" >&2
  exit 2
fi
site=${BLIPFT_SITE:-/etc/blipft/site.sh}
# shellcheck disable=SC1090
[ ! -r "$site" ] || source "$site"
# The program of the prefix that contains these scripts, or of the source tree.
case "$jobs" in
  */share/blipft/jobs) program=${BLIPFT:-$jobs/../../../bin/blipft} ;;
  *) program=${BLIPFT:-$jobs/../blipft} ;;
esac

# The job's nodes, ranks and CPUs. One rank for each GPU: every rank sees the GPUs of its node and takes its own, so
# ask for --gpus-per-node and not for --gpus-per-task. --ntasks-per-node asks for another number of ranks; a job
# without GPUs has one rank for each of its --ntasks.
read_job() {
  nodes=${SLURM_NNODES:-1}
  gpus=${SLURM_GPUS_ON_NODE:-0}
  node_ranks=${SLURM_NTASKS_PER_NODE:-$gpus}
  [ "$node_ranks" -gt 0 ] || node_ranks=$(((${SLURM_NTASKS:-1} + nodes - 1) / nodes))
  ranks=$((nodes * node_ranks))
  cpus=$((${SLURM_CPUS_ON_NODE:-1} / node_ranks))
  [ "$cpus" -ge 1 ] || cpus=1
}

# Seconds to the job's time limit; nothing where it has none. SLURM_JOB_END_TIME is of newer Slurms.
seconds_left() {
  local end=${SLURM_JOB_END_TIME:-}
  [ -n "$end" ] || end=$(date -d "$(squeue --noheader --job="$SLURM_JOB_ID" --format=%e)" +%s 2> /dev/null) || return 0
  echo $((end - $(date +%s)))
}

# Trains, in runs/NAME-JOB, from the newest checkpoint in there. A run that is stopped writes a checkpoint and
# ends with code 75, and its job goes back into the queue under the same number. The signal is SIGUSR1, which the
# scripts ask Slurm for 120 s before the time limit (it may come a minute earlier still; --signal=USR1@300 leaves time
# for a larger checkpoint), by SIGTERM, with which Slurm preempts, or, where no signal came, by a time limit of its
# own, BLIPFT_MARGIN seconds (60) before Slurm's. A node that dies takes what no checkpoint has:
# checkpoint.every_minutes=30.
train() {
  local name=$1 file=$2 limit=none left margin output argument status=0
  shift 2
  if [ -z "${SLURM_JOB_ID:-}" ]; then
    echo "$0: not in a job; submit it: sbatch $0" >&2
    return 2
  fi
  read_job
  left=$(seconds_left)
  if [ "${left:-0}" -gt 0 ]; then
    margin=${BLIPFT_MARGIN:-60}
    margin=$((left / 4 < margin ? left / 4 : margin))
    limit=$(printf '%d:%02d:%02d' $(((left - margin) / 3600)) $(((left - margin) / 60 % 60)) $(((left - margin) % 60)))
  fi
  # The tasks of an array are runs of their own.
  name=$name-${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
  [ -n "${SLURM_ARRAY_JOB_ID:-}" ] || name=$name$SLURM_JOB_ID
  echo "$name: $ranks ranks on $nodes nodes ($SLURM_JOB_NODELIST) with $gpus GPUs each, $cpus CPUs a rank," \
       "time limit $limit, start $((${SLURM_RESTART_COUNT:-0} + 1))"

  local run=("$file" parallel.devices="$ranks" output.path="runs/$name" checkpoint.resume=auto
             checkpoint.time_limit="$limit" "$@")
  for argument in "${run[@]}"; do
    case "$argument" in output.path=*) output=${argument#*=} ;; esac
  done
  # Says whether the job fits the GPUs before it takes them.
  "$program" --plan --ranks "$ranks" --node-ranks "$node_ranks" "${run[@]}" || return

  # scancel, scontrol requeue and the time limit send SIGTERM to this script too: it waits for the ranks all the same.
  trap : TERM
  # With "mixed", the default, and "tree" Slurm's PMIx lets a rank leave a fence before all have reached it: its first
  # message then ends another rank in MPI_Init (Slurm 22.05 with Open MPI 4.1 over TCP: 7 of 15 starts with tree on a
  # busy machine, none of 26 with ring).
  export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}
  # Threads of CPU ranks sleep while they wait for each other; otherwise they spin for milliseconds.
  [ "$gpus" -gt 0 ] || export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
  # The number of CPUs is said here because srun does not take it from sbatch. Ranks end by themselves when one fails,
  # and all of them with 75 when they are stopped: Slurm must not kill the last for the first one's code.
  unset SLURM_CPUS_PER_GPU SLURM_CPUS_PER_TASK
  srun --mpi="$mpi" --nodes="$nodes" --ntasks="$ranks" --ntasks-per-node="$node_ranks" --cpus-per-task="$cpus" \
       --kill-on-bad-exit=0 "$program" "${run[@]}" || status=$?
  # Without PMIx in Slurm (only the time limit stops such a run with a checkpoint: mpirun kills on SIGTERM):
  # mpirun -np "$ranks" --map-by "ppr:$node_ranks:node:PE=$cpus" "$program" "${run[@]}" || status=$?

  # 75: there is a checkpoint. 138 and 143: SIGUSR1 and SIGTERM came before the run listened for them, as it started.
  case "$status" in
    75 | 138 | 143)
      echo "$name: was stopped; the same command with output.path=$output goes on with the run"
      # A job that is being ended (COMPLETING) is requeued by Slurm itself, or was cancelled by its user.
      case "$(squeue --noheader --job="$SLURM_JOB_ID" --format=%T)" in
        RUNNING | SIGNALING) scontrol requeue "$SLURM_JOB_ID" && echo "$name: back in the queue" ;;
      esac ;;
  esac
  return "$status"
}
