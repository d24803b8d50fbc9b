// Package passwords has what Sarama leaves to its users: a login by SCRAM.
package passwords

import (
	"crypto/tls"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

// conversation is as Sarama's examples have it.
type conversation struct{ *scram.ClientConversation }

func (c *conversation) Begin(user, password, authzID string) error {
	client, err := scram.SHA512.NewClient(user, password, authzID)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
}

// LogIn makes clients with these settings come over TLS, as a user, by SCRAM-SHA-512.
func LogIn(config *sarama.Config, secure *tls.Config, user, password string) {
	config.Net.TLS.Enable, config.Net.TLS.Config = true, secure
	config.Net.SASL.Enable, config.Net.SASL.User, config.Net.SASL.Password = true, user, password
	config.Net.SASL.Mechanism = sarama.SASLTypeSCRAMSHA512
	// Before 1.0 tokens go without a request around them.
	if !config.Version.IsAtLeast(sarama.V1_0_0_0) {
		config.Net.SASL.Version, config.ApiVersionsRequest = sarama.SASLHandshakeV0, false
	}
	config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{} }
}
