import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.InvalidRegularExpression;
import org.apache.kafka.common.errors.UnreleasedInstanceIdException;
import org.apache.kafka.common.errors.UnsupportedAssignorException;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/** Consumer groups of the consumer protocol (KIP-848), and both ways between it and the classic one. */
@Execution(ExecutionMode.CONCURRENT)
public class ConsumerGroups extends Suite {
    static final String[] NEW = {"group.protocol", "consumer"};

    static String[] with(String... more) {
        return java.util.stream.Stream.concat(List.of(NEW).stream(), List.of(more).stream()).toArray(String[]::new);
    }

    static Groups.Member member(String topic, String group, String... more) {
        return new Groups.Member(topic, group, with(more));
    }

    static void inState(String group, GroupState state) throws Exception {
        Groups.eventually(() -> {
            try {
                return Groups.describe(group).groupState() == state;
            } catch (Exception failure) {
                throw new AssertionError(failure);
            }
        }, group + " is " + state);
    }

    @Test
    @Tag("short")
    public void membersOfTheNewProtocolShareAnewWhenTheyJoinAndLeave() throws Exception {
        for (String assignor : List.of("uniform", "range")) {
            String topic = newTopic(6);
            String group = unique("group");
            Groups.Member first = member(topic, group, "group.remote.assignor", assignor);
            Groups.owns(first, 6);
            Groups.produceTo(topic, 6, 0, 300);
            Groups.Member second = member(topic, group, "group.remote.assignor", assignor);
            Groups.share(6, first, second);
            Groups.produceTo(topic, 6, 300, 600);
            Groups.Member third = member(topic, group, "group.remote.assignor", assignor);
            Groups.share(6, first, second, third);
            Groups.produceTo(topic, 6, 600, 900);
            second.leave();
            Groups.share(6, first, third);
            Groups.produceTo(topic, 6, 900, 1200);
            Groups.processedOnce(1200, List.of(first, second, third));
            first.leave();
            third.leave();
            equal(Groups.committed(group, topic, 6), 1200L, "committed offsets with " + assignor);
        }
    }

    @Test
    public void membersOfTheNewProtocolGiveUpOnlyWhatAnotherGets() throws Exception {
        String topic = newTopic(6);
        String group = unique("group");
        Groups.Member first = member(topic, group);
        Groups.owns(first, 6);
        Groups.Member second = member(topic, group);
        Groups.share(6, first, second);
        equal(first.revoked.get(0).size(), 3, "revoked from the first member");
        first.leave();
        Groups.owns(second, 6);
        second.leave();
    }

    @Test
    public void aStaticMemberOfTheNewProtocolComesBackToItsShare() throws Exception {
        String topic = newTopic(4);
        String group = unique("group");
        Groups.Member first = member(topic, group, "group.instance.id", "one");
        Groups.Member second = member(topic, group, "group.instance.id", "two");
        Groups.share(4, first, second);
        Set<Integer> before = new TreeSet<>(second.owned);
        int rebalances = first.rebalances.get();
        // A static member that is closed in the default way says that it may come back.
        second.vanish();
        Groups.Member again = member(topic, group, "group.instance.id", "two");
        Groups.eventually(() -> again.owned.equals(before), "the same partitions as before");
        equal(first.rebalances.get(), rebalances, "the other member's rebalances");
        var instances = Groups.describe(group).members().stream().map(each -> each.groupInstanceId().orElse("none")).sorted().toList();
        equal(instances, List.of("one", "two"), "instance ids");
        Groups.Member usurper = member(topic, group, "group.instance.id", "one");
        Throwable failure = usurper.end.get(20, TimeUnit.SECONDS);
        check(failure instanceof UnreleasedInstanceIdException, "the usurper ended with " + failure);
        first.leave();
        again.leave();
    }

    @Test
    public void nothingIsLostOrRepeatedWhileMembersOfTheNewProtocolComeAndGo() throws Exception {
        int partitions = 8;
        int count = 6000;
        String topic = newTopic(partitions);
        String group = unique("group");
        List<Groups.Member> members = new ArrayList<>();
        List<Groups.Member> present = new ArrayList<>();
        Random random = new Random(7);
        for (int sent = 0; sent < count; sent += 500) {
            if (present.size() < 2 || present.size() < 5 && random.nextBoolean()) {
                present.add(member(topic, group, "max.poll.records", "20"));
                members.add(present.get(present.size() - 1));
            } else {
                present.remove(random.nextInt(present.size())).leave();
            }
            Groups.produceTo(topic, partitions, sent, sent + 500);
            Thread.sleep(random.nextInt(400));
        }
        Groups.processedOnce(count, members);
        for (Groups.Member each : present) {
            each.leave();
        }
        equal(Groups.committed(group, topic, partitions), (long) count, "committed offsets");
    }

    @Test
    public void topicsThatGrowAreReadByMembersOfTheNewProtocol() throws Exception {
        String topic = newTopic(1);
        Groups.Member only = member(topic, unique("group"));
        Groups.owns(only, 1);
        try (Admin admin = admin()) {
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
        }
        Groups.owns(only, 3);
        only.leave();
    }

    @Test
    public void aRegularExpressionIsResolvedByTheBroker() throws Exception {
        String prefix = unique("pattern");
        String group = unique("group");
        try (Admin admin = admin()) {
            create(admin, prefix + "-a", 1);
            Groups.Member only = new Groups.Member(new SubscriptionPattern(prefix + "-.*"), group, with());
            Groups.owns(only, 1);
            create(admin, prefix + "-b", 2);
            // Partitions of different topics count once each: 0 and 1. Topics that are new are looked for every ten seconds.
            Groups.owns(only, 2);
            only.leave();
            Groups.Member wrong = new Groups.Member(new SubscriptionPattern("["), unique("group"), with());
            Throwable failure = wrong.end.get(20, TimeUnit.SECONDS);
            check(failure instanceof InvalidRegularExpression, "the wrong one ended with " + failure);
        }
    }

    static void create(Admin admin, String topic, int partitions) throws Exception {
        admin.createTopics(List.of(new org.apache.kafka.clients.admin.NewTopic(topic, partitions, (short) brokers()))).all().get();
    }

    /** Unlike patterns that the client resolves, which leaves them out. */
    @Test
    public void internalTopicsAreReadByAPatternToo() throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer = Groups.inGroup(unique("group"), with("auto.offset.reset", "latest"))) {
            consumer.subscribe(new SubscriptionPattern("__consumer_offset."));
            Groups.eventually(() -> {
                consumer.poll(Duration.ofMillis(100));
                return consumer.assignment().size() == 50;
            }, "all partitions of the log of groups");
        }
    }

    @Test
    public void anAssignorThatTheBrokerDoesNotHaveIsRefused() throws Exception {
        Groups.Member wrong = member(newTopic(1), unique("group"), "group.remote.assignor", "sticky");
        Throwable failure = wrong.end.get(20, TimeUnit.SECONDS);
        check(failure instanceof UnsupportedAssignorException, "it ended with " + failure);
    }

    @Test
    public void groupsOfTheNewProtocolAreDescribedListedAndDeleted() throws Exception {
        String topic = newTopic(2);
        String group = unique("group");
        Groups.Member only = member(topic, group, "client.id", "me", "group.instance.id", "instance");
        Groups.owns(only, 2);
        inState(group, GroupState.STABLE);
        var described = Groups.describe(group);
        equal(List.of(described.type(), described.partitionAssignor(), described.isSimpleConsumerGroup()),
                List.of(GroupType.CONSUMER, "uniform", false), "the group");
        equal(described.targetAssignmentEpoch(), described.groupEpoch(), "its epochs");
        var one = described.members().iterator().next();
        equal(List.of(one.clientId(), one.host(), one.groupInstanceId().get(), one.upgraded().get()),
                List.of("me", "/127.0.0.1", "instance", true), "the member");
        equal(one.memberEpoch(), described.groupEpoch(), "its epoch");
        Set<TopicPartition> both = Set.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
        equal(List.of(one.assignment().topicPartitions(), one.targetAssignment().get().topicPartitions()), List.of(both, both), "its share");
        try (Admin admin = admin()) {
            var options = new ListGroupsOptions().withTypes(Set.of(GroupType.CONSUMER)).inGroupStates(Set.of(GroupState.STABLE));
            var listed = admin.listGroups(options).all().get().stream().filter(each -> each.groupId().equals(group)).toList();
            equal(listed.size(), 1, "listed");
            equal(List.of(listed.get(0).protocol(), listed.get(0).type().get()), List.of("consumer", GroupType.CONSUMER), "as");
            refused(GroupNotEmptyException.class, () -> admin.deleteConsumerGroups(List.of(group)).all().get());
            only.leave();
            inState(group, GroupState.EMPTY);
            admin.deleteConsumerGroups(List.of(group)).all().get();
            check(admin.listGroups().all().get().stream().noneMatch(each -> each.groupId().equals(group)), "it is gone");
        }
    }

    @Test
    public void aRunningGroupIsUpgradedAndDowngraded() throws Exception {
        for (String strategy : List.of(Groups.EAGER, Groups.COOPERATIVE)) {
            String topic = newTopic(6);
            String group = unique("group");
            Groups.Member old = new Groups.Member(topic, group, "partition.assignment.strategy", strategy);
            Groups.owns(old, 6);
            Groups.produceTo(topic, 6, 0, 300);
            Groups.processedOnce(300, List.of(old));
            Groups.Member one = member(topic, group);
            Groups.share(6, old, one);
            equal(Groups.describe(group).type(), GroupType.CONSUMER, "the kind of the group");
            Groups.produceTo(topic, 6, 300, 600);
            Groups.Member other = new Groups.Member(topic, group, "partition.assignment.strategy", strategy);
            Groups.share(6, old, one, other);
            Groups.produceTo(topic, 6, 600, 900);
            one.leave();
            Groups.share(6, old, other);
            equal(Groups.describe(group).type(), GroupType.CLASSIC, "the kind of the group");
            Groups.produceTo(topic, 6, 900, 1200);
            Groups.processedOnce(1200, List.of(old, one, other));
            old.leave();
            other.leave();
            equal(Groups.committed(group, topic, 6), 1200L, "committed offsets with " + strategy);
        }
    }

    @Test
    public void anEmptyGroupIsTakenOverByEitherProtocol() throws Exception {
        String topic = newTopic(2);
        String group = unique("group");
        for (String protocol : List.of("consumer", "classic", "consumer")) {
            Groups.Member only = new Groups.Member(topic, group, "group.protocol", protocol);
            Groups.owns(only, 2);
            equal(Groups.describe(group).type(), protocol.equals("consumer") ? GroupType.CONSUMER : GroupType.CLASSIC, "the kind of the group");
            only.leave();
            inState(group, GroupState.EMPTY);
        }
    }

    @Test
    public void automaticCommitsOfTheNewProtocolLetTheNextMemberGoOn() throws Exception {
        String topic = newTopic(1);
        String group = unique("group");
        Groups.produceTo(topic, 1, 0, 10);
        for (int from : new int[] {0, 10}) {
            try (KafkaConsumer<byte[], byte[]> consumer = Groups.inGroup(group, with("enable.auto.commit", "true"))) {
                consumer.subscribe(List.of(topic));
                equal(text(Groups.nextRecords(consumer).iterator().next().value()), "" + from, "the first record");
            }
            Groups.produceTo(topic, 1, 10, 12);
        }
    }
}
