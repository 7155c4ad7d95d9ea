"""Crews of many machines that share a file system: Ray and Slurm. Nothing here is imported before `--on` names one."""
