package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	. "duramen/compat/gosuite"
)

func Test_a_producer_id_is_given_out(t *testing.T) { Run(t, producerID) }
func Test_readers_share_partitions_as_they_join_and_leave_with_every_balancer(t *testing.T) {
	Run(t, everyBalancer)
}
func Test_committed_offsets_are_found_by_the_next_reader(t *testing.T)        { Run(t, committedOffsets) }
func Test_groups_are_listed_described_and_deleted(t *testing.T)               { Run(t, groupAdmin) }
func Test_offsets_are_committed_fetched_and_deleted_by_an_admin(t *testing.T) { Run(t, offsetAdmin) }
func Test_a_static_member_keeps_its_place(t *testing.T)                       { Run(t, staticMember) }

// member reads in the background and commits each record.
type member struct {
	reader *kafka.Reader
	ended  sync.WaitGroup
	lock   sync.Mutex
	values []string
}

func join(group, topic, clientID string, balancers ...kafka.GroupBalancer) *member {
	m := &member{reader: kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{Bootstrap()}, GroupID: group, Topic: topic, GroupBalancers: balancers, MaxWait: 200 * time.Millisecond,
		HeartbeatInterval: 100 * time.Millisecond, JoinGroupBackoff: 100 * time.Millisecond, StartOffset: kafka.FirstOffset,
		Dialer: dialer(clientID),
	})}
	m.ended.Go(func() {
		for {
			got, err := m.reader.ReadMessage(context.Background())
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				// The reader tells of what it met, and goes on.
				continue
			}
			m.lock.Lock()
			m.values = append(m.values, string(got.Value))
			m.lock.Unlock()
		}
	})
	return m
}

func (m *member) leave() {
	m.reader.Close()
	m.ended.Wait()
}

func (m *member) consumed() int {
	m.lock.Lock()
	defer m.lock.Unlock()
	return len(m.values)
}

func (m *member) allConsumed(ctx context.Context, count int) {
	Until(ctx, fmt.Sprint(count, " records"), func() bool { return m.consumed() >= count })
	Check(m.consumed() == count, "expected %d records, got %d", count, m.consumed())
}

func described(ctx context.Context, group string) kafka.DescribeGroupsResponseGroup {
	return Must(client().DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{group}})).Groups[0]
}

// shared waits until the group is stable and all partitions are assigned, as many to each member as the counts say.
func shared(ctx context.Context, group string, counts ...int) {
	Until(ctx, fmt.Sprint("partitions shared as ", counts), func() bool {
		now := described(ctx, group)
		var found, all []int
		for _, one := range now.Members {
			for _, topic := range one.MemberAssignments.Topics {
				found = append(found, len(topic.Partitions))
				all = append(all, topic.Partitions...)
			}
		}
		slices.Sort(all)
		return now.GroupState == "Stable" && slices.Equal(found, counts) && slices.Equal(all, []int{0, 1, 2, 3})
	})
}

// spread produces `count` numbers to the four partitions in turn.
func spread(ctx context.Context, topic string, count int) {
	sent := numbered(count)
	for i := range sent {
		sent[i].WriterData = i % 4
	}
	Done(produce(ctx, topic, sent))
}

func everyBalancer(ctx context.Context) {
	for _, balancer := range []kafka.GroupBalancer{kafka.RangeGroupBalancer{}, kafka.RoundRobinGroupBalancer{}} {
		topic, group := newTopic(ctx, 4), Unique("kafka-go-group")
		first := join(group, topic, "first", balancer)
		shared(ctx, group, 4)
		second := join(group, topic, "second", balancer)
		shared(ctx, group, 2, 2)
		spread(ctx, topic, 40)
		first.allConsumed(ctx, 20)
		second.allConsumed(ctx, 20)
		first.leave()
		shared(ctx, group, 4)
		spread(ctx, topic, 40)
		second.allConsumed(ctx, 60)
		second.leave()
		Check(described(ctx, group).GroupState == "Empty", "nobody is left")
	}
}

func fetched(ctx context.Context, group, topic string, partitions ...int) (offsets []int64) {
	answer := Must(client().OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{topic: partitions}}))
	Done(answer.Error)
	for _, partition := range answer.Topics[topic] {
		Done(partition.Error)
		offsets = append(offsets, partition.CommittedOffset)
	}
	return offsets
}

func committedOffsets(ctx context.Context) {
	topic, group := newTopic(ctx, 4), Unique("kafka-go-group")
	spread(ctx, topic, 40)
	first := join(group, topic, "first")
	first.allConsumed(ctx, 40)
	// A record's commit follows its delivery.
	Until(ctx, "every commit", func() bool { return slices.Equal(fetched(ctx, group, topic, 0, 1, 2, 3), []int64{10, 10, 10, 10}) })
	first.leave()
	spread(ctx, topic, 8)
	second := join(group, topic, "second")
	second.allConsumed(ctx, 8)
	second.leave()
	offsets := Must(client().ConsumerOffsets(ctx, kafka.TopicAndGroup{Topic: topic, GroupId: group}))
	Check(len(offsets) == 4 && offsets[3] == 12, "%v", offsets)
}

func groupAdmin(ctx context.Context) {
	topic, group := newTopic(ctx, 4), Unique("kafka-go-group")
	m := join(group, topic, "the-client")
	shared(ctx, group, 4)
	now := described(ctx, group)
	Check(now.Error == nil && len(now.Members) == 1, "%+v", now)
	Check(now.Members[0].ClientID == "the-client" && now.Members[0].ClientHost == "/127.0.0.1", "%+v", now.Members[0])
	Check(slices.Equal(now.Members[0].MemberMetadata.Topics, []string{topic}), "%+v", now.Members[0])
	listed := func() bool {
		answer := Must(client().ListGroups(ctx, &kafka.ListGroupsRequest{}))
		Done(answer.Error)
		return slices.ContainsFunc(answer.Groups, func(one kafka.ListGroupsResponseGroup) bool { return one.GroupID == group })
	}
	Check(listed(), "it is listed")
	remove := func() error {
		return Must(client().DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{group}})).Errors[group]
	}
	Refused(remove(), kafka.NonEmptyGroup)
	m.leave()
	Done(remove())
	Check(!listed(), "it is gone")
	Refused(remove(), kafka.GroupIdNotFound)
}

func offsetAdmin(ctx context.Context) {
	topic, group := newTopic(ctx, 4), Unique("kafka-go-group")
	commit := func() error {
		answer := Must(client().OffsetCommit(ctx, &kafka.OffsetCommitRequest{
			GroupID: group, GenerationID: -1, Topics: map[string][]kafka.OffsetCommit{topic: {{Partition: 0, Offset: 3}, {Partition: 1, Offset: 7}}},
		}))
		return answer.Topics[topic][0].Error
	}
	remove := func(partition int) error {
		answer := Must(client().OffsetDelete(ctx, &kafka.OffsetDeleteRequest{GroupID: group, Topics: map[string][]int{topic: {partition}}}))
		Done(answer.Error)
		return answer.Topics[topic][0].Error
	}
	Done(commit())
	Check(slices.Equal(fetched(ctx, group, topic, 0, 1, 2), []int64{3, 7, -1}), "%v", fetched(ctx, group, topic, 0, 1, 2))
	Done(remove(0))
	Check(slices.Equal(fetched(ctx, group, topic, 0, 1), []int64{-1, 7}), "%v", fetched(ctx, group, topic, 0, 1))
	m := join(group, topic, "m")
	shared(ctx, group, 4)
	Refused(remove(1), kafka.GroupSubscribedToTopic)
	Refused(commit(), kafka.UnknownMemberId)
	m.leave()
}

// The Reader has no static members; the Client's own requests have.
func staticMember(ctx context.Context) {
	topic, group := newTopic(ctx, 4), Unique("kafka-go-group")
	request := &kafka.JoinGroupRequest{
		GroupID: group, GroupInstanceID: "one", ProtocolType: "consumer", SessionTimeout: 6 * time.Second, RebalanceTimeout: 6 * time.Second,
		Protocols: []kafka.GroupProtocol{{Name: "range", Metadata: kafka.GroupProtocolSubscription{Topics: []string{topic}}}},
	}
	joined := Must(client().JoinGroup(ctx, request))
	Check(joined.Error == nil && joined.LeaderID == joined.MemberID, "%+v", joined)
	sync := func(memberID string) *kafka.SyncGroupResponse {
		return Must(client().SyncGroup(ctx, &kafka.SyncGroupRequest{
			GroupID: group, GenerationID: joined.GenerationID, MemberID: memberID, GroupInstanceID: "one",
			ProtocolType: "consumer", ProtocolName: "range", Assignments: []kafka.SyncGroupRequestAssignment{
				{MemberID: memberID, Assignment: kafka.GroupProtocolAssignment{AssignedPartitions: map[string][]int{topic: {0, 2}}}},
			},
		}))
	}
	synced := sync(joined.MemberID)
	Check(synced.Error == nil && slices.Equal(synced.Assignment.AssignedPartitions[topic], []int{0, 2}), "%+v", synced)
	again := Must(client().JoinGroup(ctx, request))
	Check(again.Error == nil && again.GenerationID == joined.GenerationID && again.MemberID != joined.MemberID, "%+v, then %+v", joined, again)
	// The client's own Heartbeat takes the throttle time for the error, so a commit must tell.
	commit := func(memberID string) error {
		return Must(client().OffsetCommit(ctx, &kafka.OffsetCommitRequest{
			GroupID: group, GenerationID: again.GenerationID, MemberID: memberID, InstanceID: "one",
			Topics: map[string][]kafka.OffsetCommit{topic: {{Partition: 0, Offset: 1}}},
		})).Topics[topic][0].Error
	}
	Done(commit(again.MemberID))
	Refused(commit(joined.MemberID), kafka.FencedInstanceID)
	left := Must(client().LeaveGroup(ctx, &kafka.LeaveGroupRequest{
		GroupID: group, Members: []kafka.LeaveGroupRequestMember{{ID: again.MemberID, GroupInstanceID: "one"}},
	}))
	Check(left.Error == nil && described(ctx, group).GroupState == "Empty", "%+v", left)
}
