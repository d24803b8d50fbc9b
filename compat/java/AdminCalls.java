import static org.junit.jupiter.api.Assumptions.assumeFalse;

import java.time.Duration;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListStreamsGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RaftVoterEndpoint;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.admin.UserScramCredentialDeletion;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.errors.DelegationTokenDisabledException;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.GroupSubscribedToTopicException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidReplicaAssignmentException;
import org.apache.kafka.common.errors.InvalidUpdateVersionException;
import org.apache.kafka.common.errors.LogDirNotFoundException;
import org.apache.kafka.common.errors.NoReassignmentInProgressException;
import org.apache.kafka.common.errors.SecurityDisabledException;
import org.apache.kafka.common.errors.TransactionalIdNotFoundException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.errors.UnsupportedByAuthenticationException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.extension.TestExecutionExceptionHandler;
import org.junit.jupiter.api.parallel.Isolated;

/**
 * Every call of the admin client, one test each, named as the call is. What Duramen does not serve yet is in NOT_YET.
 */
@Isolated
public class AdminCalls extends Suite {
    static final Set<String> ASK_NO_BROKER =
            Set.of("close", "create", "metrics", "registerMetricForSubscription", "unregisterMetricFromSubscription");

    /** What Duramen may not serve yet: it answers as Kafka does, or the client says that the call is unknown to it. */
    static final Set<String> NOT_YET = Set.of("describeStreamsGroups");

    static final ResourcePattern pattern = new ResourcePattern(ResourceType.TOPIC, "t", PatternType.LITERAL);
    static final AccessControlEntry entry = new AccessControlEntry("User:me", "*", AclOperation.READ, AclPermissionType.ALLOW);
    static final Class<SecurityDisabledException> noAuthorizer = SecurityDisabledException.class;
    /** Kafka tells a user that it makes no tokens, and others that they are not for them. */
    static final Class<? extends ApiException> noTokens = hasUser ? DelegationTokenDisabledException.class : UnsupportedByAuthenticationException.class;
    static final ClientQuotaEntity client = new ClientQuotaEntity(Map.of(ClientQuotaEntity.CLIENT_ID, "of-the-suite"));
    static final String nobody = unique("nobody");
    static final TopicPartition partition = new TopicPartition("t", 0);
    static final Class<GroupIdNotFoundException> notFound = GroupIdNotFoundException.class;

    static Admin admin;

    @RegisterExtension
    static final TestExecutionExceptionHandler notYet = (test, failure) -> {
        boolean isUnknown = failure.toString().contains(UnsupportedVersionException.class.getSimpleName());
        if (isKafka || !NOT_YET.contains(test.getRequiredTestMethod().getName()) || !isUnknown) {
            throw failure;
        }
        Assumptions.abort("not yet");
    };

    @Test
    public void everyAdminCallHasATest() {
        Set<String> all = Arrays.stream(Admin.class.getDeclaredMethods())
                .map(method -> method.getName())
                .filter(name -> !name.contains("$"))
                .collect(Collectors.toCollection(TreeSet::new));
        all.removeAll(ASK_NO_BROKER);
        Set<String> tested = Arrays.stream(AdminCalls.class.getDeclaredMethods())
                .filter(method -> method.isAnnotationPresent(Test.class))
                .map(method -> method.getName())
                .collect(Collectors.toCollection(TreeSet::new));
        tested.remove("everyAdminCallHasATest");
        equal(all, tested, "the calls of the admin client");
    }

    static synchronized Admin shared() {
        if (admin == null) {
            admin = admin();
        }
        return admin;
    }

    static ConfigResource topicResource(String topic) {
        return new ConfigResource(ConfigResource.Type.TOPIC, topic);
    }

    static Map<String, ConfigEntry> described(ConfigResource resource) throws Exception {
        Config config = shared().describeConfigs(List.of(resource), new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true))
                .all().get().get(resource);
        return config.entries().stream().collect(Collectors.toMap(ConfigEntry::name, entry -> entry));
    }

    /** A broker of Kafka's learns of a change after its controller has answered. */
    static <T> void becomes(ConfigResource resource, String name, Function<ConfigEntry, T> aspect, T wanted) throws Exception {
        T seen = null;
        for (int attempt = 0; attempt < 250 && !wanted.equals(seen); attempt++) {
            Thread.sleep(attempt == 0 ? 0 : 20);
            seen = aspect.apply(described(resource).get(name));
        }
        equal(seen, wanted, name);
    }

    static void set(ConfigResource resource, AlterConfigOp.OpType operation, String name, String value) throws Exception {
        shared().incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(new ConfigEntry(name, value), operation)))).all().get();
    }

    @Test
    public void createTopics() throws Exception {
        String name = unique("admin");
        var created = shared().createTopics(List.of(new NewTopic(name, Map.of(0, List.of(1), 1, List.of(1))).configs(Map.of("retention.ms", "1000"))));
        equal(created.numPartitions(name).get(), 2, "partitions");
        equal(created.replicationFactor(name).get(), 1, "replicas");
        equal(created.config(name).get().get("retention.ms").value(), "1000", "the setting");
        check(!created.topicId(name).get().equals(Uuid.ZERO_UUID), "an id");
    }

    @Test
    public void listTopics() throws Exception {
        String name = newTopic(1);
        var listing = shared().listTopics(new ListTopicsOptions().listInternal(true)).namesToListings().get().get(name);
        equal(listing.isInternal(), false, "internal");
    }

    @Test
    public void describeTopics() throws Exception {
        String name = newTopic(3);
        var byName = shared().describeTopics(List.of(name)).allTopicNames().get().get(name);
        equal(byName.partitions().size(), 3, "partitions");
        equal(byName.partitions().get(2).isr().stream().map(node -> node.id()).sorted().toList(), brokerIds(), "in-sync replicas");
        var byId = shared().describeTopics(TopicCollection.ofTopicIds(List.of(byName.topicId()))).allTopicIds().get();
        equal(byId.get(byName.topicId()).name(), name, "by its id");
        refused(UnknownTopicOrPartitionException.class, () -> shared().describeTopics(List.of(unique("nowhere"))).allTopicNames().get());
    }

    @Test
    public void deleteTopics() throws Exception {
        String name = newTopic(1);
        Uuid id = shared().describeTopics(List.of(name)).allTopicNames().get().get(name).topicId();
        shared().deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get();
        // Of several brokers one may hear of it a moment after another has answered.
        for (int attempt = 0; attempt < 250 && brokers() > 1 && shared().listTopics().names().get().contains(name); attempt++) {
            Thread.sleep(20);
        }
        check(!shared().listTopics().names().get().contains(name), "it is gone");
    }

    @Test
    public void createPartitions() throws Exception {
        String name = newTopic(1);
        shared().createPartitions(Map.of(name, NewPartitions.increaseTo(4))).all().get();
        equal(shared().describeTopics(List.of(name)).allTopicNames().get().get(name).partitions().size(), 4, "partitions");
    }

    @Test
    public void deleteRecords() throws Exception {
        TopicPartition partition = new TopicPartition(newTopic(1), 0);
        produce(partition.topic(), 5);
        equal(shared().deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(3))).lowWatermarks().get(partition).get().lowWatermark(), 3L, "low");
    }

    @Test
    public void listOffsets() throws Exception {
        String topic = newTopic(20);
        produce(topic, 5);
        var asked = Stream.iterate(0, p -> p + 1).limit(20).collect(Collectors.toMap(p -> new TopicPartition(topic, p), p -> OffsetSpec.latest()));
        var found = shared().listOffsets(asked).all().get();
        equal(found.values().stream().mapToLong(each -> each.offset()).sum(), 5L, "the ends");
    }

    @Test
    public void describeProducers() throws Exception {
        TopicPartition partition = new TopicPartition(newTopic(1), 0);
        produce(partition.topic(), 5, "batch.size", "0");
        var producers = shared().describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers();
        equal(producers.size(), 1, "producers");
        equal(producers.get(0).lastSequence(), 4, "the last sequence");
        equal(producers.get(0).producerEpoch(), 0, "the epoch");
        equal(producers.get(0).currentTransactionStartOffset().isPresent(), false, "a transaction");
    }

    @Test
    public void electLeaders() throws Exception {
        TopicPartition partition = new TopicPartition(newTopic(1), 0);
        TopicPartition unknown = new TopicPartition(unique("nowhere"), 0);
        var results = shared().electLeaders(ElectionType.PREFERRED, Set.of(partition, unknown)).partitions().get();
        equal(results.get(partition).get().getClass(), ElectionNotNeededException.class, "one that leads already");
        equal(results.get(unknown).get().getClass(), UnknownTopicOrPartitionException.class, "an unknown one");
    }

    @Test
    public void alterPartitionReassignments() throws Exception {
        TopicPartition partition = new TopicPartition(newTopic(1), 0);
        shared().alterPartitionReassignments(Map.of(partition, Optional.of(new NewPartitionReassignment(List.of(1))))).all().get();
        // Of three brokers one may hear of its end a moment after another one, and any may be asked.
        List<Integer> replicas = List.of();
        var underWay = shared().listPartitionReassignments(Set.of(partition)).reassignments().get();
        for (int attempt = 0; attempt < 250 && !(replicas.equals(List.of(1)) && underWay.isEmpty()); attempt++) {
            Thread.sleep(20);
            var moved = shared().describeTopics(List.of(partition.topic())).allTopicNames().get().get(partition.topic()).partitions().get(0);
            replicas = moved.replicas().stream().map(node -> node.id()).toList();
            underWay = shared().listPartitionReassignments(Set.of(partition)).reassignments().get();
        }
        equal(replicas, List.of(1), "its replicas");
        equal(underWay, Map.of(), "what is under way");
        refused(InvalidReplicaAssignmentException.class, () ->
                shared().alterPartitionReassignments(Map.of(partition, Optional.of(new NewPartitionReassignment(List.of(1, 9))))).all().get());
        refused(NoReassignmentInProgressException.class, () -> shared().alterPartitionReassignments(Map.of(partition, Optional.empty())).all().get());
    }

    @Test
    public void listPartitionReassignments() throws Exception {
        equal(shared().listPartitionReassignments().reassignments().get(), Map.of(), "reassignments");
    }

    @Test
    public void describeConfigs() throws Exception {
        var entries = described(topicResource(newTopic(1, "retention.ms", "5000")));
        ConfigEntry own = entries.get("retention.ms");
        equal(List.of(own.value(), own.source(), own.isDefault(), own.isSensitive(), own.isReadOnly(), own.type()),
                List.of("5000", ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, false, false, false, ConfigEntry.ConfigType.LONG), "a setting of its own");
        ConfigEntry byDefault = entries.get("cleanup.policy");
        equal(List.of(byDefault.value(), byDefault.source(), byDefault.type()),
                List.of("delete", ConfigEntry.ConfigSource.DEFAULT_CONFIG, ConfigEntry.ConfigType.LIST), "a default");
        equal(byDefault.synonyms().get(0).name(), "log.cleanup.policy", "its synonym");
        check(entries.values().stream().allMatch(entry -> !entry.documentation().isBlank()), "each has a description");
        var broker = described(new ConfigResource(ConfigResource.Type.BROKER, "1"));
        equal(broker.get("message.max.bytes").value(), "1048588", "a broker's setting");
    }

    @Test
    public void incrementalAlterConfigs() throws Exception {
        ConfigResource topic = topicResource(newTopic(1));
        set(topic, AlterConfigOp.OpType.SET, "retention.ms", "1234567");
        set(topic, AlterConfigOp.OpType.APPEND, "cleanup.policy", "compact");
        becomes(topic, "retention.ms", ConfigEntry::value, "1234567");
        becomes(topic, "cleanup.policy", ConfigEntry::value, "delete,compact");
        set(topic, AlterConfigOp.OpType.SUBTRACT, "cleanup.policy", "delete");
        set(topic, AlterConfigOp.OpType.DELETE, "retention.ms", "");
        becomes(topic, "cleanup.policy", ConfigEntry::value, "compact");
        becomes(topic, "retention.ms", ConfigEntry::source, ConfigEntry.ConfigSource.DEFAULT_CONFIG);
        refused(InvalidConfigurationException.class, () -> {
            set(topic, AlterConfigOp.OpType.SET, "retention.ms", "soon");
            return null;
        });
    }

    @Test
    public void listConfigResources() throws Exception {
        var listed = shared().listConfigResources(Set.of(ConfigResource.Type.TOPIC, ConfigResource.Type.BROKER), new org.apache.kafka.clients.admin.ListConfigResourcesOptions());
        Collection<ConfigResource> all = listed.all().get();
        check(all.contains(new ConfigResource(ConfigResource.Type.BROKER, "1")), "the broker in " + all);
    }

    @Test
    public void clientInstanceId() throws Exception {
        try (Admin pushing = Admin.create(settings("enable.metrics.push", "true"))) {
            check(pushing.clientInstanceId(Duration.ofSeconds(2)) == null, "no id without telemetry");
        }
    }

    @SuppressWarnings("removal")
    @Test
    public void listClientMetricsResources() throws Exception {
        equal(List.copyOf(shared().listClientMetricsResources().all().get()), List.of(), "subscriptions");
    }

    /** A group with two committed offsets and no members. */
    static String newGroup(String topic) throws Exception {
        String group = unique("admin-group");
        Map<TopicPartition, OffsetAndMetadata> offsets =
                Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(3, "three"), new TopicPartition(topic, 1), new OffsetAndMetadata(4));
        shared().alterConsumerGroupOffsets(group, offsets).all().get();
        return group;
    }

    @Test
    public void alterConsumerGroupOffsets() throws Exception {
        String topic = newTopic(2);
        String group = newGroup(topic);
        var altered = shared().alterConsumerGroupOffsets(group, Map.of(new TopicPartition(unique("nowhere"), 0), new OffsetAndMetadata(1)));
        refused(UnknownTopicOrPartitionException.class, () -> altered.all().get());
    }

    @Test
    public void listConsumerGroupOffsets() throws Exception {
        String topic = newTopic(2);
        String one = newGroup(topic);
        String two = newGroup(topic);
        TopicPartition zero = new TopicPartition(topic, 0);
        var both = shared().listConsumerGroupOffsets(Map.of(one, new ListConsumerGroupOffsetsSpec(), two, new ListConsumerGroupOffsetsSpec().topicPartitions(List.of(zero))));
        equal(both.partitionsToOffsetAndMetadata(one).get().get(new TopicPartition(topic, 1)).offset(), 4L, "offset");
        equal(both.partitionsToOffsetAndMetadata(two).get(), Map.of(zero, new OffsetAndMetadata(3, "three")), "what was asked for");
        String nobody = unique("nobody");
        equal(shared().listConsumerGroupOffsets(nobody).partitionsToOffsetAndMetadata().get(), Map.of(), "an unknown group");
    }

    @Test
    public void deleteConsumerGroupOffsets() throws Exception {
        String topic = newTopic(2);
        String group = newGroup(topic);
        TopicPartition zero = new TopicPartition(topic, 0);
        shared().deleteConsumerGroupOffsets(group, Set.of(zero)).all().get();
        equal(shared().listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().keySet(), Set.of(new TopicPartition(topic, 1)), "left");
        Groups.Member member = new Groups.Member(topic, group);
        Groups.owns(member, 2);
        refused(GroupSubscribedToTopicException.class, () -> shared().deleteConsumerGroupOffsets(group, Set.of(zero)).all().get());
        member.leave();
    }

    @Test
    public void describeConsumerGroups() throws Exception {
        String topic = newTopic(2);
        String group = unique("admin-group");
        Groups.Member member = new Groups.Member(topic, group, "client.id", "me", "group.instance.id", "instance");
        Groups.owns(member, 2);
        var described = shared().describeConsumerGroups(List.of(group)).all().get().get(group);
        equal(List.of(described.groupState(), described.type(), described.partitionAssignor(), described.isSimpleConsumerGroup()),
                List.of(GroupState.STABLE, GroupType.CLASSIC, "range", false), "the group");
        check(brokerIds().contains(described.coordinator().id()), "the coordinator: " + described.coordinator());
        var one = described.members().iterator().next();
        equal(List.of(one.clientId(), one.host(), one.groupInstanceId().get()), List.of("me", "/127.0.0.1", "instance"), "the member");
        check(one.consumerId().matches("instance-[0-9a-f-]{36}"), "the member's id: " + one.consumerId());
        equal(one.assignment().topicPartitions(), Set.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1)), "its share");
        member.leave();
        refused(GroupIdNotFoundException.class, () -> shared().describeConsumerGroups(List.of(unique("nobody"))).all().get());
    }

    @Test
    public void describeClassicGroups() throws Exception {
        String group = newGroup(newTopic(2));
        var described = shared().describeClassicGroups(List.of(group)).all().get().get(group);
        equal(List.of(described.state().toString(), described.members().size(), described.isSimpleConsumerGroup()), List.of("Empty", 0, true), "the group");
    }

    @Test
    public void listGroups() throws Exception {
        String group = newGroup(newTopic(2));
        var options = new org.apache.kafka.clients.admin.ListGroupsOptions();
        var found = shared().listGroups(options.inGroupStates(Set.of(GroupState.EMPTY)).withTypes(Set.of(GroupType.CLASSIC))).all().get().stream()
                .filter(each -> each.groupId().equals(group)).toList();
        equal(found.size(), 1, "listed");
        equal(List.of(found.get(0).protocol(), found.get(0).groupState().get(), found.get(0).type().get()), List.of("", GroupState.EMPTY, GroupType.CLASSIC), "as");
        var stable = shared().listGroups(new org.apache.kafka.clients.admin.ListGroupsOptions().inGroupStates(Set.of(GroupState.STABLE))).all().get();
        check(stable.stream().noneMatch(each -> each.groupId().equals(group)), "not among the stable ones");
    }

    @Test
    public void removeMembersFromConsumerGroup() throws Exception {
        String topic = newTopic(2);
        String group = unique("admin-group");
        Groups.Member member = new Groups.Member(topic, group, "group.instance.id", "one");
        Groups.owns(member, 2);
        member.vanish();
        var options = new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("one")));
        shared().removeMembersFromConsumerGroup(group, options).all().get();
        equal(Groups.describe(group).groupState(), GroupState.EMPTY, "the state");
        Groups.Member other = new Groups.Member(topic, group);
        Groups.owns(other, 2);
        other.vanish();
        shared().removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions()).all().get();
        equal(Groups.describe(group).members().size(), 0, "members");
    }

    @Test
    public void deleteConsumerGroups() throws Exception {
        String topic = newTopic(2);
        String group = newGroup(topic);
        shared().deleteConsumerGroups(List.of(group)).all().get();
        refused(GroupIdNotFoundException.class, () -> shared().deleteConsumerGroups(List.of(group)).all().get());
        Groups.Member member = new Groups.Member(topic, group);
        Groups.owns(member, 2);
        refused(GroupNotEmptyException.class, () -> shared().deleteConsumerGroups(List.of(group)).all().get());
        member.leave();
    }

    @SuppressWarnings("removal")
    @Test
    public void listConsumerGroups() throws Exception {
        String group = newGroup(newTopic(2));
        var found = shared().listConsumerGroups().all().get().stream().filter(each -> each.groupId().equals(group)).toList();
        equal(found.size(), 1, "listed");
        equal(found.get(0).isSimpleConsumerGroup(), true, "a simple group");
    }

    @Test
    public void describeCluster() throws Exception {
        var cluster = shared().describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
        equal(cluster.nodes().get().stream().map(node -> node.id()).sorted().toList(), brokerIds(), "nodes");
        equal(cluster.authorizedOperations().get().contains(AclOperation.ALTER), true, "what one may do");
    }

    @Test
    public void describeLogDirs() throws Exception {
        TopicPartition partition = new TopicPartition(newTopic(1), 0);
        produce(partition.topic(), 5);
        var directories = shared().describeLogDirs(List.of(1)).allDescriptions().get().get(1);
        equal(directories.size(), 1, "directories");
        var directory = directories.values().iterator().next();
        var replica = directory.replicaInfos().get(partition);
        check(replica.size() > 0 && replica.size() < 1000, "size: " + replica.size());
        equal(List.of(replica.isFuture(), replica.offsetLag()), List.of(false, 0L), "the replica");
        check(directory.totalBytes().getAsLong() >= directory.usableBytes().getAsLong(), "the disk");
    }

    @Test
    public void describeReplicaLogDirs() throws Exception {
        TopicPartitionReplica replica = new TopicPartitionReplica(newTopic(1), 0, 1);
        var found = shared().describeReplicaLogDirs(List.of(replica)).all().get().get(replica);
        check(found.getCurrentReplicaLogDir() != null, "a directory");
        check(found.getFutureReplicaLogDir() == null, "no other one");
    }

    @Test
    public void alterReplicaLogDirs() {
        refused(LogDirNotFoundException.class, () ->
                shared().alterReplicaLogDirs(Map.of(new TopicPartitionReplica(newTopic(1), 0, 1), "/nowhere")).all().get());
    }

    @Test
    public void describeFeatures() throws Exception {
        var features = shared().describeFeatures().featureMetadata().get();
        // Duramen has no such levels; it may support none.
        check(!isKafka || features.supportedFeatures().containsKey("metadata.version"), "supported: " + features);
        check(!isKafka || features.finalizedFeatures().containsKey("metadata.version"), "finalized: " + features);
    }

    @Test
    public void updateFeatures() {
        refused(InvalidUpdateVersionException.class, () ->
                shared().updateFeatures(Map.of("no.such.feature", new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE))).all().get());
    }

    @Test
    public void describeMetadataQuorum() throws Exception {
        var quorum = shared().describeMetadataQuorum().quorumInfo().get();
        check(brokerIds().contains(quorum.leaderId()), "leader: " + quorum.leaderId());
        equal(quorum.voters().stream().map(voter -> voter.replicaId()).sorted().toList(), brokerIds(), "voters");
        check(quorum.highWatermark() > 0 && quorum.leaderEpoch() > 0, "where it is: " + quorum);
    }

    @Test
    public void addRaftVoter() {
        refused(UnsupportedVersionException.class, () ->
                shared().addRaftVoter(2, Uuid.randomUuid(), Set.of(new RaftVoterEndpoint("CONTROLLER", "localhost", 1))).all().get());
    }

    @Test
    public void removeRaftVoter() {
        refused(UnsupportedVersionException.class, () -> shared().removeRaftVoter(2, Uuid.randomUuid()).all().get());
    }

    @Test
    public void unregisterBroker() {
        refused(org.apache.kafka.common.errors.BrokerIdNotRegisteredException.class, () -> shared().unregisterBroker(99).all().get());
    }

    /** What rules do where there are some is in ../security. */
    static void assumeNoRules() {
        assumeFalse(hasUser, "run.py --secured has rules of its own");
    }

    @Test
    public void describeAcls() {
        assumeNoRules();
        refused(noAuthorizer, () -> shared().describeAcls(AclBindingFilter.ANY).values().get());
    }

    @Test
    public void createAcls() {
        assumeNoRules();
        refused(noAuthorizer, () -> shared().createAcls(List.of(new AclBinding(pattern, entry))).all().get());
    }

    @Test
    public void deleteAcls() {
        assumeNoRules();
        refused(noAuthorizer, () -> shared().deleteAcls(List.of(AclBindingFilter.ANY)).all().get());
    }

    @Test
    public void createDelegationToken() {
        refused(noTokens, () -> shared().createDelegationToken().delegationToken().get());
    }

    @Test
    public void renewDelegationToken() {
        refused(noTokens, () -> shared().renewDelegationToken(new byte[] {1}).expiryTimestamp().get());
    }

    @Test
    public void expireDelegationToken() {
        refused(noTokens, () -> shared().expireDelegationToken(new byte[] {1}).expiryTimestamp().get());
    }

    @Test
    public void describeDelegationToken() {
        refused(noTokens, () -> shared().describeDelegationToken().delegationTokens().get());
    }

    @Test
    public void alterUserScramCredentials() throws Exception {
        var info = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096);
        shared().alterUserScramCredentials(List.of(new UserScramCredentialUpsertion("me", info, "secret"))).all().get();
        shared().alterUserScramCredentials(List.of(new UserScramCredentialDeletion("me", ScramMechanism.SCRAM_SHA_256))).all().get();
    }

    @Test
    public void describeUserScramCredentials() throws Exception {
        var users = shared().describeUserScramCredentials().all().get();
        check(hasUser ? users.containsKey(System.getenv("SASL_USERNAME")) : users.isEmpty(), "users: " + users);
    }

    @Test
    public void alterClientQuotas() throws Exception {
        for (Double rate : new Double[] {1e9, null}) {
            shared().alterClientQuotas(List.of(new ClientQuotaAlteration(client, List.of(new ClientQuotaAlteration.Op("producer_byte_rate", rate))))).all().get();
        }
    }

    @Test
    public void describeClientQuotas() throws Exception {
        equal(shared().describeClientQuotas(ClientQuotaFilter.all()).entities().get(), Map.of(), "quotas");
    }

    // Groups of other kinds than consumer groups: there are none, and every call must say so.

    @Test
    public void describeShareGroups() {
        refused(notFound, () -> shared().describeShareGroups(List.of(nobody)).all().get());
    }

    @Test
    public void deleteShareGroups() {
        refused(notFound, () -> shared().deleteShareGroups(List.of(nobody)).all().get());
    }

    @Test
    public void alterShareGroupOffsets() throws Exception {
        refused(UnknownTopicOrPartitionException.class, () -> shared().alterShareGroupOffsets(nobody, Map.of(partition, 1L)).all().get());
        equal(startsAt(unique("share"), 3, 2), "2, 1 left", "where it starts");
    }

    @Test
    public void listShareGroupOffsets() throws Exception {
        String group = unique("nobody");
        equal(shared().listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec())).all().get(), Map.of(group, Map.of()), "offsets");
        equal(startsAt(group, 5, 0), "0, 5 left", "where it starts");
    }

    @Test
    public void deleteShareGroupOffsets() throws Exception {
        String group = unique("nobody");
        String topic = newTopic(1);
        refused(notFound, () -> shared().deleteShareGroupOffsets(group, Set.of(topic)).all().get());
        shared().alterShareGroupOffsets(group, Map.of(new TopicPartition(topic, 0), 0L)).all().get();
        shared().deleteShareGroupOffsets(group, Set.of(topic)).all().get();
        refused(UnknownTopicOrPartitionException.class, () -> shared().deleteShareGroupOffsets(group, Set.of(topic)).all().get());
    }

    @Test
    public void describeStreamsGroups() {
        refused(notFound, () -> shared().describeStreamsGroups(List.of(nobody)).all().get());
    }

    @Test
    public void deleteStreamsGroups() {
        refused(notFound, () -> shared().deleteStreamsGroups(List.of(nobody)).all().get());
    }

    @Test
    public void alterStreamsGroupOffsets() throws Exception {
        String topic = newTopic(1);
        shared().alterStreamsGroupOffsets(unique("streams"), Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(1))).all().get();
    }

    @Test
    public void listStreamsGroupOffsets() throws Exception {
        equal(shared().listStreamsGroupOffsets(Map.of(nobody, new ListStreamsGroupOffsetsSpec())).all().get(), Map.of(nobody, Map.of()), "offsets");
    }

    @Test
    public void deleteStreamsGroupOffsets() {
        refused(notFound, () -> shared().deleteStreamsGroupOffsets(nobody, Set.of(partition)).all().get());
    }

    /** Where a share group starts that is to start there, in a new topic with so many records. */
    static String startsAt(String group, int records, long start) throws Exception {
        String topic = newTopic(1);
        produce(topic, records);
        TopicPartition partition = new TopicPartition(topic, 0);
        shared().alterShareGroupOffsets(group, Map.of(partition, start)).all().get();
        var all = shared().listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec())).partitionsToOffsetInfo(group).get();
        var found = all.get(partition);
        return found.startOffset() + ", " + found.lag().orElseThrow() + " left";
    }

    @Test
    public void listTransactions() throws Exception {
        try (var open = new OpenTransaction()) {
            var listed = shared().listTransactions(new ListTransactionsOptions()
                    .filterStates(List.of(TransactionState.ONGOING)).filterOnTransactionalIdPattern(open.id + ".*")).all().get();
            equal(listed.stream().map(TransactionListing::transactionalId).toList(), List.of(open.id), "those that are open");
            check(listed.iterator().next().producerId() >= 0, "its producer");
            var older = shared().listTransactions(new ListTransactionsOptions().filterOnDuration(3_600_000)).all().get();
            check(older.stream().noneMatch(each -> each.transactionalId().equals(open.id)), "it has been open for an hour");
        }
    }

    @Test
    public void describeTransactions() throws Exception {
        try (var open = new OpenTransaction()) {
            TransactionDescription described = open.described();
            equal(described.state(), TransactionState.ONGOING, "its state");
            equal(described.topicPartitions(), Set.of(open.partition), "its partitions");
            equal(described.transactionTimeoutMs(), 60_000L, "its timeout");
            check(brokerIds().contains(described.coordinatorId()), "its coordinator: " + described.coordinatorId());
            check(described.transactionStartTimeMs().getAsLong() > System.currentTimeMillis() - 60_000, "when it began");
            open.producer.commitTransaction();
            open.becomes(TransactionState.COMPLETE_COMMIT);
        }
        refused(TransactionalIdNotFoundException.class, () -> shared().describeTransactions(List.of(unique("nobody"))).all().get());
    }

    @Test
    public void fenceProducers() throws Exception {
        try (var open = new OpenTransaction()) {
            var fenced = shared().fenceProducers(List.of(open.id));
            fenced.all().get();
            TransactionDescription described = open.described();
            equal(List.of(fenced.producerId(open.id).get(), (int) fenced.epochId(open.id).get()),
                    List.of(described.producerId(), described.producerEpoch()), "who its successor would be");
            open.isAborted();
        }
    }

    @Test
    public void forceTerminateTransaction() throws Exception {
        try (var open = new OpenTransaction()) {
            shared().forceTerminateTransaction(open.id).result().get();
            open.isAborted();
        }
    }

    @Test
    public void abortTransaction() throws Exception {
        try (var open = new OpenTransaction()) {
            var state = shared().describeProducers(List.of(open.partition)).partitionResult(open.partition).get().activeProducers().get(0);
            equal(state.currentTransactionStartOffset().getAsLong(), 0L, "where it began");
            // The partition's own end of it, for when its coordinator has forgotten.
            var spec = new AbortTransactionSpec(open.partition, state.producerId(), (short) state.producerEpoch(), 0);
            shared().abortTransaction(spec).all().get();
            state = shared().describeProducers(List.of(open.partition)).partitionResult(open.partition).get().activeProducers().get(0);
            equal(state.currentTransactionStartOffset().isPresent(), false, "a transaction");
            equal(Transactions.seen(open.partition.topic(), "read_committed"), List.of(), "values");
        }
    }

    /** A producer that has written one record and not yet decided. */
    static class OpenTransaction implements AutoCloseable {
        final String id = unique("open");
        final TopicPartition partition = new TopicPartition(newTopic(1), 0);
        final KafkaProducer<byte[], byte[]> producer = producer("transactional.id", id, "max.block.ms", "20000");

        OpenTransaction() throws Exception {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(message(partition.topic(), "open")).get();
        }

        TransactionDescription described() throws Exception {
            return shared().describeTransactions(List.of(id)).description(id).get();
        }

        void becomes(TransactionState wanted) throws Exception {
            TransactionState seen = null;
            for (int attempt = 0; attempt < 250 && seen != wanted; attempt++) {
                Thread.sleep(attempt == 0 ? 0 : 20);
                seen = described().state();
            }
            equal(seen, wanted, "the state");
        }

        void isAborted() throws Exception {
            Transactions.fenced("a commit", producer::commitTransaction);
            equal(Transactions.seen(partition.topic(), "read_committed"), List.of(), "values");
        }

        @Override
        public void close() {
            producer.close(Duration.ZERO);
        }
    }
}
