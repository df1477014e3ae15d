//! Tokens that the local stack signs, and the checks that a JWT authorizer makes of them.
//!
//! Source: the API Gateway developer guide, "Control access to HTTP APIs with JWT authorizers", and
//! the Cognito developer guide, "Understanding user pool JSON web tokens". Cognito signs with
//! RS256. The keys here are of P-256, which `ring` can make, so the algorithm is ES256 (RFC 7518,
//! 3.4).

use anyhow::{Result, anyhow};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use ring::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair,
        UnparsedPublicKey,
    },
};
use serde_json::{Map, Value, json};
use uuid::Uuid;

/// The key of a running stack. Each start makes a new key, so a token is valid only while its
/// stack runs.
#[derive(Debug)]
pub(crate) struct Tokens {
    key: EcdsaKeyPair,
    /// The name of the key in the set of keys.
    id: String,
    /// The issuer of the tokens: the URL of the HTTP API.
    issuer: String,
    random: SystemRandom,
}

impl Tokens {
    /// Makes a key for tokens of this issuer.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub(crate) fn new(issuer: String) -> Result<Self> {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let unusable = |_| anyhow!("the system has no random numbers for a key");
        let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random).map_err(unusable)?;
        let key = EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random)
            .map_err(|error| anyhow!("the key of this stack cannot be read: {error}"))?;
        Ok(Self { key, id: Uuid::new_v4().to_string(), issuer, random })
    }

    /// Returns the issuer.
    pub(crate) fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Signs claims, after adding the issuer, the times and an id to the claims.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub(crate) fn sign(&self, mut claims: Value, now: Timestamp, seconds: i64) -> Result<String> {
        claims["iss"] = json!(self.issuer);
        claims["iat"] = json!(now.as_second());
        claims["exp"] = json!(now.as_second() + seconds);
        claims["jti"] = json!(Uuid::new_v4());
        let header = json!({ "alg": "ES256", "kid": self.id, "typ": "JWT" });
        let [header, claims] = [header, claims].map(|part| encode(part.to_string()));
        let signed = format!("{header}.{claims}");
        let signature = self.key.sign(&self.random, signed.as_bytes());
        let signature = signature.map_err(|_| anyhow!("a token cannot be signed"))?;
        Ok(format!("{signed}.{}", encode(signature)))
    }

    /// Returns the claims of a token that this stack signed and that has not expired. Returns
    /// `None` for every other token.
    pub(crate) fn claims(&self, token: &str, now: Timestamp) -> Option<Map<String, Value>> {
        let [header, claims, signature] = token.split('.').collect::<Vec<_>>().try_into().ok()?;
        let fields = |part: &str| serde_json::from_slice::<Map<_, _>>(&decode(part)?).ok();
        let header = fields(header)?;
        // Another algorithm, such as `none`, would make the signature void.
        if header.get("alg")? != "ES256" || *header.get("kid")? != *self.id {
            return None;
        }
        let signed = &token[..token.len() - signature.len() - 1];
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key().as_ref());
        key.verify(signed.as_bytes(), &decode(signature)?).ok()?;
        let claims = fields(claims)?;
        let is_valid = *claims.get("iss")? == *self.issuer
            && claims.get("exp")?.as_i64()? > now.as_second()
            && claims.get("iat")?.as_i64()? <= now.as_second();
        is_valid.then_some(claims)
    }

    /// Returns the set of keys (RFC 7517), with which clients check the signatures of tokens.
    pub(crate) fn key_set(&self) -> Value {
        // The public key is a byte for its form, then both coordinates.
        let (x, y) = self.key.public_key().as_ref()[1..].split_at(32);
        json!({ "keys": [{
            "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": self.id,
            "x": encode(x), "y": encode(y),
        }] })
    }
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

fn decode(text: &str) -> Option<Vec<u8>> {
    BASE64_URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: &str) -> Timestamp {
        time.parse().unwrap()
    }

    const NOW: &str = "2026-11-28T12:00:00Z";

    fn tokens() -> Tokens {
        Tokens::new("http://127.0.0.1:3000".into()).unwrap()
    }

    #[test]
    fn a_signed_token_gives_its_claims_until_it_expires() {
        let tokens = tokens();
        let token = tokens.sign(json!({ "sub": "ada" }), at(NOW), 60).unwrap();
        let claims = tokens.claims(&token, at("2026-11-28T12:00:59Z")).unwrap();
        assert_eq!(
            (claims["sub"].as_str(), claims["iss"].as_str()),
            (Some("ada"), Some(tokens.issuer()))
        );
        assert!(tokens.claims(&token, at("2026-11-28T12:01:00Z")).is_none());
        assert!(tokens.claims(&token, at("2026-11-28T11:59:59Z")).is_none(), "from the future");
    }

    #[test]
    fn a_token_that_was_changed_or_that_another_key_signed_gives_no_claims() {
        let ours = tokens();
        let others = tokens();
        let token = ours.sign(json!({ "sub": "ada" }), at(NOW), 60).unwrap();
        let [header, claims, signature] = token.split('.').collect::<Vec<_>>().try_into().unwrap();
        let mut eve: Value = serde_json::from_slice(&decode(claims).unwrap()).unwrap();
        eve["sub"] = json!("eve");
        let eve = encode(eve.to_string());
        let none = encode(json!({ "alg": "none", "kid": ours.id }).to_string());
        for forged in [
            format!("{header}.{eve}.{signature}"),
            format!("{header}.{claims}.{}", encode([0; 64])),
            format!("{header}.{claims}."),
            format!("{none}.{claims}."),
            format!("{none}.{eve}.{signature}"),
            format!("{header}.{claims}"),
            others.sign(json!({ "sub": "ada" }), at(NOW), 60).unwrap(),
            String::new(),
        ] {
            assert!(ours.claims(&forged, at(NOW)).is_none(), "{forged}");
        }
        let issuer = "https://cognito-idp.eu-central-1.amazonaws.com/eu-central-1_example";
        let other_issuer = Tokens { issuer: issuer.into(), ..ours };
        let token = other_issuer.sign(json!({ "sub": "ada" }), at(NOW), 60).unwrap();
        let ours = Tokens { issuer: "http://127.0.0.1:3000".into(), ..other_issuer };
        assert!(ours.claims(&token, at(NOW)).is_none(), "of another issuer");
    }

    #[test]
    fn the_set_of_keys_checks_a_signature() {
        let tokens = tokens();
        let token = tokens.sign(json!({}), at(NOW), 60).unwrap();
        let key = &tokens.key_set()["keys"][0];
        let coordinate = |name: &str| decode(key[name].as_str().unwrap()).unwrap();
        let point = [vec![4], coordinate("x"), coordinate("y")].concat();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
        assert!(key.verify(signed.as_bytes(), &decode(signature).unwrap()).is_ok());
    }
}
