package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// How long the loss of a disk waits for the cluster to be whole.
const wholeWithin = 10 * time.Second

// whole says what a lost disk would make worse: every node's directory has a vote on the metadata, nothing is being moved,
// and every partition has all its replicas in sync, as whoever leads it says.
func whole(cluster *Cluster) error {
	context, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	client, err := newClient(cluster.Bootstrap())
	if err != nil {
		return err
	}
	defer client.Close()
	if err := allVote(context, client, cluster); err != nil {
		return err
	}
	moving, err := kmsg.NewPtrListPartitionReassignmentsRequest().RequestWith(context, client)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(moving.ErrorCode); err != nil || len(moving.Topics) > 0 {
		return fmt.Errorf("partitions of %d topics are being moved (%v)", len(moving.Topics), err)
	}
	for _, node := range cluster.Nodes {
		if err := allInSync(context, cluster, node); err != nil {
			return err
		}
	}
	return nil
}

func allVote(context context.Context, client *kgo.Client, cluster *Cluster) error {
	request := kmsg.NewPtrDescribeQuorumRequest()
	asked, partition := kmsg.NewDescribeQuorumRequestTopic(), kmsg.NewDescribeQuorumRequestTopicPartition()
	asked.Topic = "__cluster_metadata"
	asked.Partitions = append(asked.Partitions, partition)
	request.Topics = append(request.Topics, asked)
	response, err := request.RequestWith(context, client)
	if err != nil {
		return err
	}
	if len(response.Topics) == 0 || len(response.Topics[0].Partitions) == 0 {
		return fmt.Errorf("nobody says who votes on the metadata: %v", kerr.ErrorForCode(response.ErrorCode))
	}
	told := response.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(told.ErrorCode); err != nil {
		return err
	}
	votes := make(map[[16]byte]bool)
	for _, voter := range told.CurrentVoters {
		votes[voter.ReplicaDirectoryID] = true
	}
	for _, node := range cluster.Nodes {
		id, err := node.directoryID()
		if err != nil {
			return err
		}
		if !votes[id] || len(votes) != nodes {
			return fmt.Errorf("node %d has no vote on the metadata yet, of %d", node.ID, len(votes))
		}
	}
	return nil
}

// Those that a node leads; asked of that node alone.
func allInSync(context context.Context, cluster *Cluster, node *Node) error {
	client, err := newClient([]string{node.listen})
	if err != nil {
		return err
	}
	defer client.Close()
	request := kmsg.NewPtrMetadataRequest()
	response, err := client.SeedBrokers()[0].Request(context, request)
	if err != nil {
		return err
	}
	for _, topic := range response.(*kmsg.MetadataResponse).Topics {
		for _, it := range topic.Partitions {
			if it.Leader < 0 || int(it.Leader) == node.ID && len(it.ISR) < nodes {
				return fmt.Errorf("%s-%d has replicas %v in sync", *topic.Topic, it.Partition, it.ISR)
			}
		}
	}
	return nil
}

// directoryID is what the manifest says.
func (n *Node) directoryID() (id [16]byte, err error) {
	text, err := os.ReadFile(filepath.Join(n.dataDir(), "manifest"))
	if err != nil {
		return id, err
	}
	_, rest, _ := strings.Cut(string(text), "directory.id=")
	line, _, _ := strings.Cut(rest, "\n")
	if _, err := hex.Decode(id[:], []byte(line)); err != nil {
		return id, fmt.Errorf("the manifest of node %d: %w", n.ID, err)
	}
	return id, nil
}
