//! Signatures of tokens, checked by `ring`.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(Error::from(ErrorKind::UnsupportedAlgorithm)),
    verifier_factory: |algorithm, key| {
        let means =
            means(*algorithm).ok_or_else(|| Error::from(ErrorKind::UnsupportedAlgorithm))?;
        Ok(Box::new(Check { algorithm: *algorithm, means, key: key.clone() }))
    },
    key_utils: KeyUtils::new_unimplemented(),
};

/// Has tokens checked by this file. Only the first call counts.
pub(super) fn install() {
    let _ = PROVIDER.install_default();
}

#[derive(Clone, Copy)]
enum Means {
    Rsa(&'static RsaParameters),
    Other(&'static dyn VerificationAlgorithm),
}

/// Returns the means to check signatures of an algorithm; those of a secret key have none.
fn means(algorithm: Algorithm) -> Option<Means> {
    Some(match algorithm {
        Algorithm::RS256 => Means::Rsa(&RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Means::Rsa(&RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Means::Rsa(&RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Means::Rsa(&RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Means::Rsa(&RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Means::Rsa(&RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => Means::Other(&ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Means::Other(&ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Means::Other(&ED25519),
        _ => return None,
    })
}

/// Check by one key.
struct Check {
    algorithm: Algorithm,
    means: Means,
    key: DecodingKey,
}

impl Verifier<Vec<u8>> for Check {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let checked = match (self.means, self.key.kind()) {
            (Means::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                let (n, e) = (trimmed(n), trimmed(e));
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (Means::Other(algorithm), DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(algorithm, key).verify(message, signature)
            }
            _ => return Err(signature::Error::new()),
        };
        checked.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for Check {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

/// Leaves out zeros in front of a number, which `ring` does not take.
fn trimmed(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}
