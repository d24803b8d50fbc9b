package suite

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"

	. "duramen/compat/gosuite"
)

func Test_every_protocol_version_from_0_11_on_produces_consumes_and_has_groups(t *testing.T) {
	Run(t, everyVersion)
}
func Test_members_share_partitions_as_they_join_and_leave_with_every_strategy(t *testing.T) {
	Run(t, everyStrategy)
}
func Test_a_cooperative_rebalance_leaves_the_claims_that_stay_alone(t *testing.T) {
	Run(t, cooperativeKeeps)
}
func Test_committed_offsets_are_found_by_the_next_member(t *testing.T)        { Run(t, committedOffsets) }
func Test_a_static_member_comes_back_without_a_rebalance(t *testing.T)        { Run(t, staticMember) }
func Test_groups_are_listed_described_and_deleted(t *testing.T)               { Run(t, groupAdmin) }
func Test_offsets_are_committed_fetched_and_deleted_by_an_admin(t *testing.T) { Run(t, offsetAdmin) }

// member consumes in the background, one goroutine for each partition that it has claimed.
type member struct {
	group  sarama.ConsumerGroup
	ended  sync.WaitGroup
	cancel context.CancelFunc

	lock       sync.Mutex
	claims     map[int32]bool
	claimed    int
	generation int32
	consumed   map[place]bool
	errors     []error
}

// place is where a record is. The topic of a test is one.
type place struct {
	partition int32
	offset    int64
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.generation = session.GenerationID()
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	m.lock.Lock()
	m.claims[claim.Partition()] = true
	m.claimed++
	m.lock.Unlock()
	next := claim.InitialOffset()
	for got := range claim.Messages() {
		// Marked before it is seen to be consumed: whoever leaves then has it in its last commit.
		session.MarkMessage(got, "")
		m.lock.Lock()
		m.consumed[place{got.Partition, got.Offset}] = true
		// Whoever claims a partition anew may read again what was not committed. While it has it each record comes once.
		if got.Offset < next {
			m.errors = append(m.errors, fmt.Errorf("%d-%d came again, %d was next", got.Partition, got.Offset, next))
		}
		m.lock.Unlock()
		next = got.Offset + 1
	}
	m.lock.Lock()
	delete(m.claims, claim.Partition())
	m.lock.Unlock()
	return nil
}

func join(group, topic string, changes ...settings) *member {
	m := &member{claims: map[int32]bool{}, consumed: map[place]bool{}}
	changes = append(changes, func(c *sarama.Config) { c.Consumer.Return.Errors = true })
	m.group = Must(sarama.NewConsumerGroup([]string{Bootstrap()}, group, config(changes...)))
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	m.ended.Go(func() {
		for ctx.Err() == nil {
			m.group.Consume(ctx, []string{topic}, m)
		}
	})
	m.ended.Go(func() {
		for err := range m.group.Errors() {
			m.lock.Lock()
			m.errors = append(m.errors, err)
			m.lock.Unlock()
		}
	})
	return m
}

func (m *member) leave() {
	m.cancel()
	m.group.Close()
	m.ended.Wait()
	Check(len(m.errors) == 0, "a member's errors: %v", m.errors)
}

func (m *member) has() (partitions []int32) {
	m.lock.Lock()
	defer m.lock.Unlock()
	for partition := range m.claims {
		partitions = append(partitions, partition)
	}
	slices.Sort(partitions)
	return partitions
}

// allConsumed waits until the member has consumed so many records, each once at least.
func (m *member) allConsumed(ctx context.Context, count int) {
	Until(ctx, fmt.Sprint(count, " records"), func() bool {
		m.lock.Lock()
		defer m.lock.Unlock()
		return len(m.consumed) >= count
	})
	Check(len(m.consumed) == count, "expected %d records, got %d", count, len(m.consumed))
}

// shared waits until the members have claimed all partitions between them, as many each as the counts say.
func shared(ctx context.Context, members []*member, counts ...int) {
	Until(ctx, fmt.Sprint("partitions shared as ", counts), func() bool {
		var all []int32
		for i, m := range members {
			if has := m.has(); len(has) == counts[i] {
				all = append(all, has...)
			}
		}
		slices.Sort(all)
		return slices.Equal(all, []int32{0, 1, 2, 3})
	})
}

// spread produces `count` numbers to the four partitions in turn.
func spread(topic string, count int) {
	sent := numbered(topic, count)
	for i, one := range sent {
		one.Partition = int32(i % 4)
	}
	Done(produce(sent))
}

func strategy(s sarama.BalanceStrategy) settings {
	return func(c *sarama.Config) { c.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{s} }
}

func everyStrategy(ctx context.Context) {
	strategies := []func() sarama.BalanceStrategy{
		sarama.NewBalanceStrategyRange, sarama.NewBalanceStrategyRoundRobin, sarama.NewBalanceStrategySticky,
		sarama.NewBalanceStrategyCooperativeSticky,
	}
	AtOnce(strategies, func(make func() sarama.BalanceStrategy) {
		topic, group := newTopic(4), Unique("sarama-group")
		first := join(group, topic, strategy(make()))
		shared(ctx, []*member{first}, 4)
		second := join(group, topic, strategy(make()))
		shared(ctx, []*member{first, second}, 2, 2)
		spread(topic, 40)
		first.allConsumed(ctx, 20)
		second.allConsumed(ctx, 20)
		first.leave()
		shared(ctx, []*member{second}, 4)
		spread(topic, 40)
		second.allConsumed(ctx, 60)
		second.leave()
		withAdmin(func(admin sarama.ClusterAdmin) {
			found := Must(admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0, 1, 2, 3}}))
			for partition := range int32(4) {
				block := found.GetBlock(topic, partition)
				Check(block.Err == sarama.ErrNoError && block.Offset == 20, "partition %d: committed %+v", partition, block)
			}
		})
	})
}

func cooperativeKeeps(ctx context.Context) {
	topic, group := newTopic(4), Unique("sarama-group")
	first := join(group, topic, strategy(sarama.NewBalanceStrategyCooperativeSticky()))
	shared(ctx, []*member{first}, 4)
	second := join(group, topic, strategy(sarama.NewBalanceStrategyCooperativeSticky()))
	shared(ctx, []*member{first, second}, 2, 2)
	Check(first.claimed == 4 && second.claimed == 2, "claimed %d and %d times", first.claimed, second.claimed)
	first.leave()
	shared(ctx, []*member{second}, 4)
	Check(second.claimed == 4, "claimed %d times", second.claimed)
	second.leave()
}

func committedOffsets(ctx context.Context) {
	topic, group := newTopic(4), Unique("sarama-group")
	spread(topic, 40)
	first := join(group, topic, func(c *sarama.Config) { c.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond })
	first.allConsumed(ctx, 40)
	withAdmin(func(admin sarama.ClusterAdmin) {
		Until(ctx, "the automatic commit", func() bool {
			found := Must(admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0, 1, 2, 3}}))
			for partition := range int32(4) {
				if found.GetBlock(topic, partition).Offset != 10 {
					return false
				}
			}
			return true
		})
	})
	first.leave()
	spread(topic, 8)
	second := join(group, topic)
	second.allConsumed(ctx, 8)
	second.leave()
	manager := Must(sarama.NewOffsetManagerFromClient(group, Must(sarama.NewClient([]string{Bootstrap()}, config()))))
	defer manager.Close()
	next, _ := Must(manager.ManagePartition(topic, 3)).NextOffset()
	Check(next == 12, "the next offset is %d", next)
}

func staticMember(ctx context.Context) {
	topic, group := newTopic(4), Unique("sarama-group")
	static := func(id string) settings { return func(c *sarama.Config) { c.Consumer.Group.InstanceId = id } }
	stays := join(group, topic, static("one"))
	shared(ctx, []*member{stays}, 4)
	goes := join(group, topic, static("two"))
	shared(ctx, []*member{stays, goes}, 2, 2)
	had, generation := goes.has(), stays.generation
	goes.leave()
	back := join(group, topic, static("two"))
	shared(ctx, []*member{stays, back}, 2, 2)
	Check(slices.Equal(back.has(), had), "had %v, has %v", had, back.has())
	Check(back.generation == generation && stays.claimed <= 6, "generation %d, then %d", generation, back.generation)
	stays.leave()
	back.leave()
	withAdmin(func(admin sarama.ClusterAdmin) {
		removed := Must(admin.RemoveMemberFromConsumerGroup(group, []string{"one", "two", "nobody"}))
		for _, one := range removed.Members {
			expected := sarama.ErrNoError
			if *one.GroupInstanceId == "nobody" {
				expected = sarama.ErrUnknownMemberId
			}
			Check(one.Err == expected, "%s: %v", *one.GroupInstanceId, one.Err)
		}
		Check(Must(admin.DescribeConsumerGroups([]string{group}))[0].State == "Empty", "nobody is left")
	})
}

func groupAdmin(ctx context.Context) {
	topic, group := newTopic(4), Unique("sarama-group")
	m := join(group, topic, func(c *sarama.Config) { c.ClientID = "the-client" })
	shared(ctx, []*member{m}, 4)
	withAdmin(func(admin sarama.ClusterAdmin) {
		Check(Must(admin.ListConsumerGroups())[group] == "consumer", "it is listed")
		described := Must(admin.DescribeConsumerGroups([]string{group}))[0]
		Check(described.State == "Stable" && described.Protocol == "range" && described.ProtocolType == "consumer", "%+v", described)
		Check(len(described.Members) == 1, "%+v", described.Members)
		for id, one := range described.Members {
			assigned := Must(one.GetMemberAssignment()).Topics[topic]
			Check(id == one.MemberId && one.ClientId == "the-client" && one.ClientHost == "/127.0.0.1", "%+v", one)
			Check(slices.Equal(assigned, []int32{0, 1, 2, 3}), "assigned %v", assigned)
			Check(slices.Equal(Must(one.GetMemberMetadata()).Topics, []string{topic}), "%+v", one)
		}
		Refused(admin.DeleteConsumerGroup(group), sarama.ErrNonEmptyGroup)
		m.leave()
		Check(Must(admin.DescribeConsumerGroups([]string{group}))[0].State == "Empty", "nobody is left")
		Done(admin.DeleteConsumerGroup(group))
		Refused(admin.DeleteConsumerGroup(group), sarama.ErrGroupIDNotFound)
		_, listed := Must(admin.ListConsumerGroups())[group]
		Check(!listed, "it is gone")
	})
}

func offsetAdmin(ctx context.Context) {
	topic, group := newTopic(4), Unique("sarama-group")
	withAdmin(func(admin sarama.ClusterAdmin) {
		answer := Must(admin.AlterConsumerGroupOffsets(group, map[string]map[int32]sarama.OffsetAndMetadata{
			topic: {0: {Offset: 3, Metadata: "why", LeaderEpoch: 0}, 1: {Offset: 7, LeaderEpoch: -1}},
		}, nil))
		Check(answer.Errors[topic][0] == sarama.ErrNoError && answer.Errors[topic][1] == sarama.ErrNoError, "%+v", answer)
		find := func(partition int32) *sarama.OffsetFetchResponseBlock {
			return Must(admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {partition}})).GetBlock(topic, partition)
		}
		Check(find(0).Offset == 3 && find(0).Metadata == "why" && find(0).LeaderEpoch == 0, "%+v", find(0))
		Check(find(1).Offset == 7 && find(1).Metadata == "" && find(1).LeaderEpoch == -1, "%+v", find(1))
		Check(find(2).Offset == -1 && find(2).Err == sarama.ErrNoError, "%+v", find(2))
		Done(admin.DeleteConsumerGroupOffset(group, topic, 0))
		Check(find(0).Offset == -1, "%+v", find(0))
		m := join(group, topic)
		shared(ctx, []*member{m}, 4)
		Refused(admin.DeleteConsumerGroupOffset(group, topic, 1), sarama.ErrGroupSubscribedToTopic)
		m.leave()
		many := Must(admin.ListConsumerGroupOffsetsBatch(map[string]map[string][]int32{
			group: {topic: {1}}, Unique("no-group"): {topic: {1}},
		}))
		Check(len(many) == 2 && many[group].GetBlock(topic, 1).Offset == 7, "%+v", many)
	})
}
