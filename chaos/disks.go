package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

const diskBytes = 1 << 30

// Disk is a node's own file system, if one can be made here.
type Disk struct {
	Root string
	// What it is, or why it is none.
	Kind    string
	CanFill bool
	ballast string
}

// NewDisk mounts an ext4 in a file, or a tmpfs; else it is a plain directory, which cannot be filled.
func NewDisk(directory string, node int) (*Disk, error) {
	root := filepath.Join(directory, fmt.Sprintf("disk-%d", node))
	if err := os.Mkdir(root, 0o755); err != nil {
		return nil, err
	}
	disk := &Disk{Root: root, Kind: "a directory", ballast: filepath.Join(root, "somebody-else")}
	if !ownNamespace() {
		return disk, nil
	}
	image := filepath.Join(directory, fmt.Sprintf("image-%d", node))
	if err := os.WriteFile(image, nil, 0o644); err != nil {
		return nil, err
	}
	if err := os.Truncate(image, diskBytes); err != nil {
		return nil, err
	}
	// Nothing kept back for root, so that full means full; a small journal, so that little is lost to it.
	format := exec.Command("mkfs.ext4", "-q", "-F", "-m", "0", "-J", "size=4", image)
	if format.Run() == nil && exec.Command("mount", "-o", "loop", image, root).Run() == nil {
		disk.Kind, disk.CanFill = "ext4", true
		return disk, nil
	}
	os.Remove(image)
	if exec.Command("mount", "-t", "tmpfs", "-o", "size="+strconv.Itoa(diskBytes), "none", root).Run() == nil {
		disk.Kind, disk.CanFill = "tmpfs", true
	}
	return disk, nil
}

// Fill takes all space but so much.
func (d *Disk) Fill(left int64) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(d.Root, &stat); err != nil {
		return err
	}
	file, err := os.Create(d.ballast)
	if err != nil {
		return err
	}
	defer file.Close()
	for take, size := int64(stat.Bavail)*stat.Bsize-left, int64(0); take >= 1<<20; {
		if err := unix.Fallocate(int(file.Fd()), 0, size, take); err == unix.ENOSPC {
			take /= 2 // it counts blocks of its own, too
		} else if err != nil {
			return err
		} else {
			size, take = size+take, 0
		}
	}
	return nil
}

// Free gives the space back.
func (d *Disk) Free() error {
	if err := os.Remove(d.ballast); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// Close unmounts it. Lazily: a process that is being killed may still have a file open.
func (d *Disk) Close() {
	if d.CanFill {
		exec.Command("umount", "--lazy", d.Root).Run()
	}
}

// Whether mounts and packet filters are this run's own, and go away with it. `run.sh` says so.
func ownNamespace() bool { return os.Getenv("CHAOS_OWN_NAMESPACE") == "yes" }
