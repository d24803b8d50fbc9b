package suite

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	. "duramen/compat/gosuite"
)

func Test_members_share_partitions_as_they_join_and_leave_with_every_balancer(t *testing.T) {
	Run(t, everyBalancer)
}
func Test_members_of_the_newer_protocol_share_partitions_as_the_broker_decides(t *testing.T) {
	Run(t, serverSide)
}
func Test_a_cooperative_rebalance_takes_away_only_what_moves(t *testing.T) { Long(t, cooperativeKeeps) }
func Test_committed_offsets_are_found_by_the_next_member(t *testing.T)     { Run(t, committedOffsets) }
func Test_a_static_member_comes_back_without_a_rebalance(t *testing.T)     { Long(t, staticMember) }
func Test_a_static_member_is_fenced_by_its_successor_and_removed_by_an_admin(t *testing.T) {
	Long(t, staticFencing)
}
func Test_groups_are_listed_described_and_deleted_with_their_lag(t *testing.T) { Long(t, groupAdmin) }
func Test_offsets_are_committed_fetched_and_deleted_by_an_admin(t *testing.T)  { Long(t, offsetAdmin) }
func Test_members_that_do_not_fit_a_group_are_refused(t *testing.T)            { Long(t, groupRefusals) }

// member consumes in the background and knows what it has and what was taken from it.
type member struct {
	client *kgo.Client
	polled sync.WaitGroup

	lock     sync.Mutex
	assigned map[int32]bool
	revoked  []int32
	lost     int
	values   []string
	errors   []error
}

func join(group, topic string, options ...kgo.Opt) *member {
	m := &member{assigned: map[int32]bool{}}
	taken := func(list *[]int32, count *int) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(ctx context.Context, client *kgo.Client, partitions map[string][]int32) {
			// With a callback of its own, a member's automatic commit leaves this one to it.
			client.CommitUncommittedOffsets(ctx)
			m.lock.Lock()
			defer m.lock.Unlock()
			for _, partition := range partitions[topic] {
				delete(m.assigned, partition)
				*list = append(*list, partition)
				*count++
			}
		}
	}
	var ignored int
	m.client = client(append([]kgo.Opt{
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.HeartbeatInterval(100 * time.Millisecond), kgo.FetchMaxWait(200 * time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			m.lock.Lock()
			defer m.lock.Unlock()
			for _, partition := range partitions[topic] {
				m.assigned[partition] = true
			}
		}),
		kgo.OnPartitionsRevoked(taken(&m.revoked, &ignored)),
		kgo.OnPartitionsLost(taken(&[]int32{}, &m.lost)),
	}, options...)...)
	m.polled.Go(func() {
		for {
			fetches := m.client.PollFetches(context.Background())
			if fetches.IsClientClosed() {
				return
			}
			m.lock.Lock()
			fetches.EachError(func(_ string, _ int32, err error) { m.errors = append(m.errors, err) })
			for _, record := range fetches.Records() {
				m.values = append(m.values, string(record.Value))
			}
			m.lock.Unlock()
		}
	})
	return m
}

// leave commits, and leaves unless the member is a static one.
func (m *member) leave() {
	m.client.Close()
	m.polled.Wait()
}

func (m *member) partitions() []int32 {
	m.lock.Lock()
	defer m.lock.Unlock()
	return slices.Sorted(maps.Keys(m.assigned))
}

func (m *member) consumed() []string {
	m.lock.Lock()
	defer m.lock.Unlock()
	return slices.Clone(m.values)
}

// shared waits until the members have all partitions between them, as many each as the counts say.
func shared(ctx context.Context, members []*member, counts ...int) {
	Until(ctx, fmt.Sprint("partitions shared as ", counts), func() bool {
		var all []int32
		for i, m := range members {
			has := m.partitions()
			if len(has) != counts[i] {
				return false
			}
			all = append(all, has...)
		}
		slices.Sort(all)
		return slices.Equal(all, []int32{0, 1, 2, 3})
	})
}

// spread produces numbers from..to to the four partitions in turn.
func spread(ctx context.Context, topic string, from, to int) {
	var records []*kgo.Record
	for i := from; i < to; i++ {
		records = append(records, &kgo.Record{Topic: topic, Partition: int32(i % 4), Value: []byte(strconv.Itoa(i))})
	}
	mustProduce(ctx, records)
}

// allConsumed waits until the members have consumed the numbers from..to, and wants each of them once.
func allConsumed(ctx context.Context, from, to int, members ...*member) {
	var expected, got []string
	for i := from; i < to; i++ {
		expected = append(expected, strconv.Itoa(i))
	}
	slices.Sort(expected)
	Until(ctx, fmt.Sprint("records ", from, " to ", to), func() bool {
		got = nil
		for _, m := range members {
			got = append(got, m.consumed()...)
		}
		return len(got) >= len(expected)
	})
	slices.Sort(got)
	Check(slices.Equal(got, expected), "expected %v, got %v", expected, got)
}

func everyBalancer(ctx context.Context) {
	balancers := []kgo.GroupBalancer{
		kgo.RangeBalancer(), kgo.RoundRobinBalancer(), kgo.StickyBalancer(), kgo.CooperativeStickyBalancer(),
	}
	AtOnce(balancers, func(balancer kgo.GroupBalancer) { comeAndGo(ctx, balancer, "classic", kgo.Balancers(balancer)) })
}

// serverSide is the same with KIP-848: the balancer names what the broker decides by.
func serverSide(ctx context.Context) {
	AtOnce([]kgo.GroupBalancer{kgo.RangeBalancer(), kgo.StickyBalancer()}, func(balancer kgo.GroupBalancer) {
		comeAndGo(ctx, balancer, "consumer", kgo.Balancers(balancer), kgo.ServerSideBalancer())
	})
}

func comeAndGo(ctx context.Context, balancer kgo.GroupBalancer, kind string, options ...kgo.Opt) {
	name := balancer.ProtocolName()
	topic, group := newTopic(ctx, 4), Unique("franz-group")
	first := join(group, topic, options...)
	shared(ctx, []*member{first}, 4)
	second := join(group, topic, options...)
	shared(ctx, []*member{first, second}, 2, 2)
	client := admin()
	defer client.Close()
	listed := Must(client.ListGroupsByType(ctx, []string{kind}))
	_, isOfKind := listed[group]
	Check(isOfKind, "%s: not among the groups of type %s", name, kind)
	spread(ctx, topic, 0, 40)
	allConsumed(ctx, 0, 40, first, second)
	Check(len(second.consumed()) == 20, "%s: the second consumed %v", name, second.consumed())
	first.leave()
	shared(ctx, []*member{second}, 4)
	spread(ctx, topic, 40, 80)
	allConsumed(ctx, 0, 80, first, second)
	second.leave()
	for _, m := range []*member{first, second} {
		Check(len(m.errors) == 0 && m.lost == 0, "%s: errors %v, %d partitions lost", name, m.errors, m.lost)
	}
}

func cooperativeKeeps(ctx context.Context) {
	topic, group := newTopic(ctx, 4), Unique("franz-group")
	first := join(group, topic)
	shared(ctx, []*member{first}, 4)
	second := join(group, topic)
	shared(ctx, []*member{first, second}, 2, 2)
	revoked := slices.Sorted(slices.Values(first.revoked))
	Check(slices.Equal(revoked, second.partitions()), "revoked %v, moved %v", revoked, second.partitions())
	first.leave()
	shared(ctx, []*member{second}, 4)
	Check(len(second.revoked) == 0, "taken from the one that stayed: %v", second.revoked)
	second.leave()
}

func committedOffsets(ctx context.Context) {
	topic, group := newTopic(ctx, 4), Unique("franz-group")
	spread(ctx, topic, 0, 40)
	first := join(group, topic, kgo.AutoCommitInterval(100*time.Millisecond))
	allConsumed(ctx, 0, 40, first)
	committed := func(offset int64) bool {
		client := admin()
		defer client.Close()
		found := Must(client.FetchOffsets(ctx, group))
		for partition := range int32(4) {
			if at, ok := found.Lookup(topic, partition); !ok || at.Err != nil || at.At != offset {
				return false
			}
		}
		return true
	}
	Until(ctx, "the automatic commit", func() bool { return committed(10) })
	first.leave()
	spread(ctx, topic, 40, 48)
	second := join(group, topic, kgo.DisableAutoCommit())
	allConsumed(ctx, 40, 48, second)
	Check(committed(10), "nothing was committed")
	Done(second.client.CommitUncommittedOffsets(ctx))
	Check(committed(12), "the commit that was asked for is there")
	second.leave()
}

func staticMember(ctx context.Context) {
	topic, group := newTopic(ctx, 4), Unique("franz-group")
	stays := join(group, topic, kgo.InstanceID("one"))
	shared(ctx, []*member{stays}, 4)
	goes := join(group, topic, kgo.InstanceID("two"))
	shared(ctx, []*member{stays, goes}, 2, 2)
	had, revoked := goes.partitions(), len(stays.revoked)
	_, generation := stays.client.GroupMetadata()
	goes.leave()
	back := join(group, topic, kgo.InstanceID("two"))
	shared(ctx, []*member{stays, back}, 2, 2)
	Check(slices.Equal(back.partitions(), had), "had %v, has %v", had, back.partitions())
	_, now := back.client.GroupMetadata()
	Check(now == generation && len(stays.revoked) == revoked, "generation %d, then %d", generation, now)
	spread(ctx, topic, 0, 40)
	allConsumed(ctx, 0, 40, stays, back)
	stays.leave()
	back.leave()
}

func staticFencing(ctx context.Context) {
	topic, group := newTopic(ctx, 4), Unique("franz-group")
	older := join(group, topic, kgo.InstanceID("one"))
	shared(ctx, []*member{older}, 4)
	newer := join(group, topic, kgo.InstanceID("one"))
	shared(ctx, []*member{newer}, 4)
	Until(ctx, "the older one is told", func() bool {
		older.lock.Lock()
		defer older.lock.Unlock()
		return len(older.errors) > 0
	})
	Refused(older.errors[0], kerr.FencedInstanceID)
	older.leave()
	newer.leave()
	client := admin()
	defer client.Close()
	described := Must(client.DescribeGroups(ctx, group))[group]
	Check(len(described.Members) == 1 && *described.Members[0].InstanceID == "one", "a static member stays: %+v", described)
	removed := Must(client.LeaveGroup(ctx, kadm.LeaveGroup(group).InstanceIDs("one", "nobody").Reason("test")))
	Check(removed["one"].Err == nil, "%+v", removed)
	Refused(removed["nobody"].Err, kerr.UnknownMemberID)
	Check(Must(client.DescribeGroups(ctx, group))[group].State == "Empty", "nobody is left")
}

func groupAdmin(ctx context.Context) {
	topic, group := newTopic(ctx, 4), Unique("franz-group")
	spread(ctx, topic, 0, 40)
	m := join(group, topic, kgo.ClientID("the-client"))
	allConsumed(ctx, 0, 40, m)
	Done(m.client.CommitUncommittedOffsets(ctx))
	spread(ctx, topic, 40, 44)
	allConsumed(ctx, 0, 44, m)
	client := admin()
	defer client.Close()

	stable := Must(client.ListGroups(ctx, "Stable"))[group]
	Check(stable.ProtocolType == "consumer" && stable.State == "Stable", "%+v", stable)
	_, isEmpty := Must(client.ListGroups(ctx, "Empty"))[group]
	Check(!isEmpty, "it is not among the empty ones")

	described := Must(client.DescribeGroups(ctx, group))[group]
	Check(described.State == "Stable" && described.Protocol == "cooperative-sticky" && described.ProtocolType == "consumer", "%+v", described)
	Check(len(described.Members) == 1, "%+v", described.Members)
	only := described.Members[0]
	Check(only.ClientID == "the-client" && only.ClientHost == "/127.0.0.1" && only.InstanceID == nil, "%+v", only)
	has := described.AssignedPartitions()
	Check(len(has[topic]) == 4, "assigned %v", has)

	lag := Must(client.Lag(ctx, group))[group]
	Check(lag.Error() == nil && lag.Lag.Total() == 4, "%+v", lag)
	at, _ := lag.Lag.Lookup(topic, 1)
	Check(at.Commit.At == 10 && at.End.Offset == 11 && at.Lag == 1 && at.Member.ClientID == "the-client", "%+v", at)

	_, err := client.DeleteGroup(ctx, group)
	Refused(err, kerr.NonEmptyGroup)
	m.leave()
	empty := Must(client.DescribeGroups(ctx, group))[group]
	Check(empty.State == "Empty" && len(empty.Members) == 0, "%+v", empty)
	Must(client.DeleteGroup(ctx, group))
	_, err = client.DeleteGroup(ctx, group)
	Refused(err, kerr.GroupIDNotFound)
	_, listed := Must(client.ListGroups(ctx))[group]
	Check(!listed, "it is gone")
	dead := Must(client.DescribeGroups(ctx, group))[group]
	Check(dead.State == "Dead", "%+v", dead)
}

func offsetAdmin(ctx context.Context) {
	topic, group := newTopic(ctx, 4), Unique("franz-group")
	client := admin()
	defer client.Close()
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: topic, Partition: 0, At: 3, LeaderEpoch: 0, Metadata: "why"})
	offsets.Add(kadm.Offset{Topic: topic, Partition: 1, At: 7, LeaderEpoch: -1})
	Done(client.CommitAllOffsets(ctx, group, offsets))
	found := Must(client.FetchOffsets(ctx, group))
	first, _ := found.Lookup(topic, 0)
	second, _ := found.Lookup(topic, 1)
	Check(first.At == 3 && first.LeaderEpoch == 0 && first.Metadata == "why", "%+v", first)
	Check(second.At == 7 && second.LeaderEpoch == -1 && second.Metadata == "", "%+v", second)
	Check(len(found[topic]) == 2, "%+v", found)
	asked := Must(client.FetchOffsetsForTopics(ctx, group, topic))
	never, _ := asked.Lookup(topic, 3)
	Check(never.At == -1, "%+v", never)
	state := Must(client.ListGroups(ctx))[group]
	Check(state.State == "Empty" && state.ProtocolType == "", "a group of offsets alone: %+v", state)

	var set kadm.TopicsSet
	set.Add(topic, 0)
	deleted := Must(client.DeleteOffsets(ctx, group, set))
	Check(deleted[topic][0] == nil, "%v", deleted)
	_, still := Must(client.FetchOffsets(ctx, group)).Lookup(topic, 0)
	Check(!still, "it is gone")
	m := join(group, topic)
	shared(ctx, []*member{m}, 4)
	set.Add(topic, 1)
	Refused(Must(client.DeleteOffsets(ctx, group, set))[topic][1], kerr.GroupSubscribedToTopic)
	refusedCommit := Must(client.CommitOffsets(ctx, group, offsets))
	Refused(refusedCommit[topic][0].Err, kerr.UnknownMemberID)
	m.leave()
	nowhere := Must(client.FetchOffsets(ctx, Unique("no-group")))
	Check(len(nowhere) == 0, "%v", nowhere)
}

// firstError joins a group that will not have it.
func firstError(ctx context.Context, group, topic string, options ...kgo.Opt) error {
	m := join(group, topic, options...)
	defer m.leave()
	Until(ctx, "an error", func() bool {
		m.lock.Lock()
		defer m.lock.Unlock()
		return len(m.errors) > 0
	})
	return m.errors[0]
}

func groupRefusals(ctx context.Context) {
	topic, group := newTopic(ctx, 4), Unique("franz-group")
	m := join(group, topic, kgo.Balancers(kgo.RangeBalancer()))
	shared(ctx, []*member{m}, 4)
	Refused(firstError(ctx, group, topic, kgo.Balancers(kgo.RoundRobinBalancer())), kerr.InconsistentGroupProtocol)
	Refused(firstError(ctx, group, topic, kgo.GroupProtocol("another")), kerr.InconsistentGroupProtocol)
	m.leave()
	Refused(firstError(ctx, Unique("g"), topic, kgo.SessionTimeout(time.Second)), kerr.InvalidSessionTimeout)
	client := admin()
	defer client.Close()
	_, err := client.DeleteGroup(ctx, "")
	Refused(err, kerr.GroupIDNotFound)
}
