//! Topics that the cluster makes by itself: proposed here, or asked of the leader of the metadata.

use duramen_protocol::messages::create_topics::CreatableTopic;

use super::Core;
use crate::internal_topics;

impl Core {
    /// Returns an internal topic to make, if the cluster makes it now.
    pub(crate) fn topic_to_make(&self, name: &str) -> Option<CreatableTopic> {
        let there = self.controller.image.staying().count();
        let expected = self.founding_brokers().count();
        internal_topics::to_make(name, &self.options.settings, there, expected)
    }

    /// Makes the topic, or has it made.
    pub(crate) fn make_or_want_topic(&mut self, name: &str) {
        if self.metadata_leader() == Some(self.options.facts.broker_id) {
            self.make_topic_here(name);
        } else {
            self.want_topic(name);
        }
    }

    /// Proposes the topic, unless it is proposed already. Returns the index to wait for.
    pub(crate) fn make_topic_here(&mut self, name: &str) -> Option<u64> {
        if let Some(index) = self.controller.creating(name) {
            return Some(index);
        }
        let topic = self.topic_to_make(name)?;
        let made = self.controller.create_topic(&topic, &self.options.settings);
        let proposed = made
            .map_err(|error| error.message)
            .and_then(|creation| self.propose(&creation.records).map_err(|code| code.to_string()));
        if let Err(problem) = &proposed {
            tracing::warn!(problem, "this node cannot serve coordinators: it cannot create {name}");
        }
        proposed.ok()
    }

    pub(crate) fn make_topic(&mut self, name: &str) {
        let may =
            internal_topics::is_internal(name) || self.options.settings.auto_create_topics_enable;
        let image = &self.controller.image;
        if !may || image.topic_named(name).is_some() || self.controller.creating(name).is_some() {
            return;
        }
        let topic = self.topic_to_make(name);
        let made = topic.map(|it| self.controller.create_topic(&it, &self.options.settings));
        if let Some(Ok(creation)) = made {
            self.propose_for_peer(&creation.records);
        }
    }
}
