package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// Time after the last fault for which all goes on. No leader is deposed any more, so more is demanded.
	calmFor = 6 * time.Second
	// Time after the last fault within which each node knows who leads.
	calmAfter = 2 * time.Second
	// Longest time in which workers that take all that is left are done with it in both groups.
	doneWithin = 45 * time.Second
)

// WorkQueues is the producers and the workers of the work queues.
type WorkQueues struct {
	bootstrap []string
	history   *History
	producers *Clients
	workers   *Clients
	kafka     *kgo.Client
	isEarnest atomic.Bool
	// The epoch of each partition's leader, and the time since when it is that one.
	led map[int32]term
}

type term struct {
	epoch int32
	since int64
}

// Letter is a dead letter, as a plain consumer got it: what it is of, and what it says of that.
type Letter struct {
	Group      string
	Name       string
	Partition  int32
	Offset     int64
	Deliveries int
	Reason     string
}

// WorkEnds is what the topics and the groups have in the end.
type WorkEnds struct {
	Records []Record
	Letters []Letter
	// From this time on each partition had one leader, which all nodes knew.
	Calm map[int32]int64
}

// StartWork makes the topics and the groups, and starts producers and workers.
func StartWork(cluster *Cluster, history *History) (*WorkQueues, error) {
	w := &WorkQueues{bootstrap: cluster.Bootstrap(), history: history, led: make(map[int32]term)}
	w.producers = &Clients{history: history, stop: make(chan struct{})}
	w.workers = &Clients{history: history, stop: make(chan struct{})}
	var err error
	if w.kafka, err = newClient(w.bootstrap); err != nil {
		return nil, err
	}
	creator := w.client(w.producers, "creator", cluster.Natives())
	for deadline := time.Now().Add(formsWithin); ; time.Sleep(100 * time.Millisecond) {
		if err = w.prepare(creator); err == nil {
			break
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("no work queues within %s: %w", formsWithin, err)
		}
		creator.moveOn()
	}
	w.start(cluster.Natives())
	return w, nil
}

// client returns a native client of the work queues.
func (w *WorkQueues) client(c *Clients, name string, nodes []string) *native {
	n := c.native(name, nodes)
	n.topic = workTopic
	return n
}

func (w *WorkQueues) prepare(creator *native) error {
	topics := []struct {
		name       string
		partitions int
		settings   map[string]string
	}{
		{deadTopic, 2, map[string]string{"errors.deadletterqueue.group.enable": "true"}},
		{workTopic, workPartitions, map[string]string{"queue.enable": "true", "min.insync.replicas": "2"}},
	}
	for _, it := range topics {
		creator.topic = it.name
		told, err := creator.send(http.MethodPut, "", nil, map[string]any{"partitions": it.partitions,
			"replication_factor": nodes, "settings": it.settings})
		if err != nil {
			return err
		}
		if told.Type != "" && told.problem() != "topic-exists" {
			return errors.New(told.Type)
		}
	}
	for _, group := range workGroups {
		if err := w.configure(group); err != nil {
			return err
		}
	}
	return nil
}

func (w *WorkQueues) configure(group WorkGroup) error {
	settings := map[string]string{
		"share.record.lock.duration.ms":             strconv.FormatInt(lockFor.Milliseconds(), 10),
		"share.delivery.count.limit":                strconv.Itoa(deliveriesMax),
		"errors.deadletterqueue.topic.name":         deadTopic,
		"errors.deadletterqueue.copy.record.enable": "true",
	}
	if group.IsOrdered {
		settings["share.record.order"] = "key"
	}
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group.Name
	for name, value := range settings {
		config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		config.Name, config.Value = name, kmsg.StringPtr(value)
		resource.Configs = append(resource.Configs, config)
	}
	request.Resources = append(request.Resources, resource)
	context, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	response, err := request.RequestWith(context, w.kafka)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(response.Resources[0].ErrorCode)
}

// start starts a producer a queue, a guest without guards, and workers: four of the one group, and three of the other.
func (w *WorkQueues) start(nodes []string) {
	for number := range workQueues {
		queue := fmt.Sprintf("work-%d", number)
		it := &producer{native: w.client(w.producers, "producer-"+strconv.Itoa(number), nodes), queue: queue}
		w.producers.start(it.produce)
	}
	guest := w.client(w.producers, "work-guest", nodes)
	w.producers.start(func() error {
		for guest.c.pause(time.Second) {
			it := &producer{native: guest, queue: fmt.Sprintf("work-%d", rand.Intn(workQueues))}
			it.put(false)
		}
		return nil
	})
	for i, group := range workGroups {
		for number := range 4 - i {
			name := fmt.Sprintf("%s-%d", strings.TrimPrefix(group.Name, "chaos-"), number)
			it := &worker{native: w.client(w.workers, name, nodes), group: group, isRenamed: number%2 == 1,
				isEarnest: &w.isEarnest}
			w.workers.start(it.work)
		}
	}
	w.workers.start(func() error {
		for w.workers.pause(250 * time.Millisecond) {
			w.watch()
		}
		return nil
	})
}

// watch notes who leads each partition.
func (w *WorkQueues) watch() {
	context, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	described, err := describe(context, w.kafka, workTopic)
	if err != nil {
		return
	}
	for _, it := range described.Partitions {
		if known, is := w.led[it.Partition]; !is || known.epoch != it.LeaderEpoch || it.Leader < 0 {
			w.led[it.Partition] = term{it.LeaderEpoch, now()}
		}
	}
}

// Finish lets all go on for a while, and then has workers do what is left. It demands that both groups get done with all
// messages in time, and returns what the topics have then. All faults have been over since some time.
func (w *WorkQueues) Finish(over int64) (WorkEnds, []string) {
	since := func(begin int64) time.Duration { return time.Duration(now() - begin) }
	w.workers.pause(calmFor - since(over))
	wrong := w.producers.Finish()
	// Other clients may have taken long to end: the workers' time begins now.
	earnest := now()
	w.isEarnest.Store(true)
	why := errors.New("nobody asked")
	for why != nil && since(earnest) < doneWithin {
		w.workers.pause(200 * time.Millisecond)
		why = w.lag()
	}
	if why != nil {
		wrong = append(wrong, fmt.Sprintf("in %s the workers were not done with what was left: %v", doneWithin, why))
	} else {
		fmt.Printf("the groups were done with all work %s after all faults\n", since(over).Round(10*time.Millisecond))
	}
	wrong = append(wrong, w.workers.Finish()...)
	w.watch()
	ends, err := w.read()
	if err != nil {
		wrong = append(wrong, err.Error())
	}
	w.kafka.Close()
	ends.Calm = make(map[int32]int64)
	for partition := range int32(workPartitions) {
		ends.Calm[partition] = max(w.led[partition].since, over) + int64(calmAfter)
	}
	return ends, wrong
}

// lag returns an error that says which group is not done with which partition, or why nobody knows.
func (w *WorkQueues) lag() error {
	context, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ends, err := w.endsOf(context, workTopic, workPartitions)
	if err != nil {
		return err
	}
	for _, group := range workGroups {
		request := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
		asked, topic := kmsg.NewDescribeShareGroupOffsetsRequestGroup(), kmsg.NewDescribeShareGroupOffsetsRequestGroupTopic()
		topic.Topic = workTopic
		topic.Partitions = slices.Collect(maps.Keys(ends))
		asked.GroupID, asked.Topics = group.Name, append(asked.Topics, topic)
		request.Groups = append(request.Groups, asked)
		response, err := request.RequestWith(context, w.kafka)
		if err != nil {
			return err
		}
		told := response.Groups[0]
		if err := kerr.ErrorForCode(told.ErrorCode); err != nil {
			return err
		}
		for _, it := range told.Topics[0].Partitions {
			if err := kerr.ErrorForCode(it.ErrorCode); err != nil {
				return err
			}
			if it.StartOffset < ends[it.Partition] {
				return fmt.Errorf("%s has done with partition %d up to offset %d of %d", group.Name, it.Partition, it.StartOffset,
					ends[it.Partition])
			}
		}
	}
	return nil
}

// endsOf returns where the partitions of a topic end, but for those that are empty.
func (w *WorkQueues) endsOf(context context.Context, topic string, partitions int32) (map[int32]int64, error) {
	request := kmsg.NewPtrListOffsetsRequest()
	request.ReplicaID = -1
	asked := kmsg.NewListOffsetsRequestTopic()
	asked.Topic = topic
	for partition := range partitions {
		its := kmsg.NewListOffsetsRequestTopicPartition()
		its.Partition, its.Timestamp = partition, -1
		asked.Partitions = append(asked.Partitions, its)
	}
	request.Topics = append(request.Topics, asked)
	response, err := request.RequestWith(context, w.kafka)
	if err != nil {
		return nil, err
	}
	ends := make(map[int32]int64)
	for _, it := range response.Topics[0].Partitions {
		if err := kerr.ErrorForCode(it.ErrorCode); err != nil {
			return nil, err
		}
		if it.Offset > 0 {
			ends[it.Partition] = it.Offset
		}
	}
	return ends, nil
}

// read reads the messages and the dead letters, as a plain consumer.
func (w *WorkQueues) read() (ends WorkEnds, err error) {
	headersOf := func(record *kgo.Record) map[string]string {
		headers := make(map[string]string)
		for _, it := range record.Headers {
			headers[it.Key] = string(it.Value)
		}
		return headers
	}
	number := func(text string) int64 {
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return -1
		}
		return number
	}
	err = w.readTopic(workTopic, workPartitions, func(it *kgo.Record) {
		name := namedBy(headersOf(it)["duramen-id"], string(it.Value))
		ends.Records = append(ends.Records, Record{string(it.Key), it.Partition, it.Offset, name})
	})
	if err != nil {
		return ends, err
	}
	err = w.readTopic(deadTopic, 2, func(it *kgo.Record) {
		said := headersOf(it)
		of := func(name string) string { return said["__dlq.errors."+name] }
		ends.Letters = append(ends.Letters, Letter{of("group"), namedBy(said["duramen-id"], string(it.Value)),
			int32(number(of("partition"))), number(of("offset")), int(number(of("delivery.count"))), of("message")})
	})
	return ends, err
}

func (w *WorkQueues) readTopic(topic string, partitions int32, take func(*kgo.Record)) error {
	context, cancel := context.WithTimeout(context.Background(), readsWithin/2)
	defer cancel()
	ends, err := w.endsOf(context, topic, partitions)
	if err != nil {
		return err
	}
	from := make(map[int32]kgo.Offset)
	for partition := range ends {
		from[partition] = kgo.NewOffset().At(0)
	}
	if len(from) == 0 {
		return nil
	}
	client, err := newClient(w.bootstrap, kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	if err != nil {
		return err
	}
	defer client.Close()
	for left := len(ends); left > 0; {
		fetches := client.PollFetches(context)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("a consumer of %s: %w", topic, err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			take(record)
			if record.Offset == ends[record.Partition]-1 {
				left--
			}
		})
	}
	return nil
}
