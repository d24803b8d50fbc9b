package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"time"
)

// awaitIdentical waits until all nodes hold the same segments, byte for byte, and returns how they differ if they never do.
// Nobody may append meanwhile. A follower ends where its leader ends, so all there is is compared.
func awaitIdentical(cluster *Cluster, longest time.Duration) (string, error) {
	for deadline := time.Now().Add(longest); ; time.Sleep(200 * time.Millisecond) {
		difference, err := differences(cluster)
		if difference == "" || err != nil || time.Now().After(deadline) {
			return difference, err
		}
	}
}

func differences(cluster *Cluster) (string, error) {
	var first map[string][]byte
	for _, node := range cluster.Nodes {
		segments, err := segmentsOf(node)
		if err != nil {
			return "", err
		}
		if first == nil {
			first = segments
			continue
		}
		for _, name := range union(first, segments) {
			ours, theirs := first[name], segments[name]
			if bytes.Equal(ours, theirs) {
				continue
			}
			at := 0
			for at < len(ours) && at < len(theirs) && ours[at] == theirs[at] {
				at++
			}
			return fmt.Sprintf("%s has %d bytes on node 1 and %d on node %d; they differ from byte %d on",
				name, len(ours), len(theirs), node.ID, at), nil
		}
	}
	if len(first) == 0 {
		return "", fmt.Errorf("node 1 has no segments in %s", cluster.Nodes[0].dataDir())
	}
	return "", nil
}

// segmentsOf reads the segments of all topics of clients: their names begin with that of the first one.
func segmentsOf(node *Node) (map[string][]byte, error) {
	paths, err := filepath.Glob(filepath.Join(node.dataDir(), topic+"-*", "*.log"))
	if err != nil {
		return nil, err
	}
	segments := make(map[string][]byte)
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(node.dataDir(), path)
		if err != nil {
			return nil, err
		}
		segments[name] = content
	}
	return segments, nil
}

func union(a, b map[string][]byte) []string {
	var names []string
	for name := range a {
		names = append(names, name)
	}
	for name := range b {
		if _, both := a[name]; !both {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names
}
